"""The Hardware page: what this machine has for models to run on."""
