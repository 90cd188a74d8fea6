"""What vLLM compiled for one model on one kind of machine, kept in a folder: made after a good launch, carried to other
machines, and used there from the first start. `facts.py` says what it depends on, `pack.py` what it holds, `store.py`
which one fits a launch, `working_copy.py` how a launch gets it."""
