"""Failures of vLLM by a model folder that changed after preflight had passed it: files that were cut, replaced or
emptied, and values that no part of the engine knows."""

from __future__ import annotations

from tests.bench.faults import spoiling
from tests.bench.faults.fault import Expect, Fault

VLLM_FILES: tuple[Fault, ...] = (
    # -- files that cannot be read -------------------------------------------------------------------------------------
    Fault("the tokenizer is cut", "vllm", "start",
          Expect((r"tokenizer\.json is not JSON",), family="model-config", causes=("tokenizer-unparsable",)),
          late=spoiling.cut("tokenizer.json"), by_hand=True, bare=()),
    Fault("the tokenizer's settings are no JSON", "vllm", "start",
          Expect((r"tokenizer_config\.json is not JSON",), family="model-config", causes=("tokenizer-unparsable",)),
          late=spoiling.text("tokenizer_config.json", "tokenizer_class: LlamaTokenizer\n")),
    Fault("config.json is cut", "vllm", "start",
          Expect((r"config\.json is not JSON",), family="model-config", causes=("config-not-json",)),
          late=spoiling.cut("config.json")),
    Fault("config.json is a link to itself", "vllm", "start",
          Expect((r"config\.json",), family="model-config|host", causes=("no-config-file",)),
          late=spoiling.link_to_itself("config.json")),
    Fault("a Git LFS pointer instead of the weights", "vllm", "start",
          Expect(("Git LFS pointer",), family="weights", causes=("safetensors-damaged",)),
          late=spoiling.text(spoiling.WEIGHTS, spoiling.POINTER), by_hand=True),
    Fault("the weights file is empty", "vllm", "start",
          Expect(("0 bytes",), family="weights", causes=("safetensors-damaged",)),
          late=spoiling.text(spoiling.WEIGHTS, ""), by_hand=True),
    Fault("a folder where the weights were", "vllm", "start",
          Expect((r"model\.safetensors is not a file",), family="weights", causes=("weights-not-loaded",)),
          late=spoiling.folder_instead(spoiling.WEIGHTS)),
    # -- files that do not hold what they should -----------------------------------------------------------------------
    Fault("a tokenizer with a step that does not exist", "vllm", "start",
          Expect(("Sorcery|tokenizer",), family="model-config", causes=("tokenizer",)),
          late=spoiling.replaced("tokenizer.json", '"ByteLevel"', '"Sorcery"')),
    # -- what an editor or a person made of config.json ----------------------------------------------------------------
    Fault("config.json in UTF-16", "vllm", "start",
          Expect((r"config\.json is not UTF-8",), family="model-config", causes=("config-not-json",)),
          late=spoiling.recoded("config.json", "utf-16"), by_hand=True),
    Fault("config.json behind a byte order mark", "vllm", "start",
          Expect((r"config\.json.{1,60}BOM",), family="model-config", causes=("config-not-json",)),
          late=spoiling.recoded("config.json", "utf-8-sig"), by_hand=True),
    Fault("a larger vocabulary in config.json than in the weights", "vllm", "start",
          Expect(("vocab_size", "512"), family="weights", causes=("weights-check-failed",)),
          late=spoiling.config(vocab_size=600), by_hand=True),
    Fault("fewer layers in config.json than in the weights", "vllm", "start",
          Expect(("num_hidden_layers",), family="weights", causes=("weight-missing",)),
          late=spoiling.config(num_hidden_layers=1), by_hand=True),
    Fault("a number of layers that is a word", "vllm", "start",
          Expect(("num_hidden_layers", "two"), family="model-config", causes=("model-value-refused",)),
          late=spoiling.config(num_hidden_layers="two"), by_hand=True),
    # -- values that the engine does not know --------------------------------------------------------------------------
    Fault("a quantisation that nobody knows", "vllm", "start",
          Expect(("quip",), family="quant-dtype", causes=("quantisation-unknown",)),
          late=spoiling.config(quantization_config={"quant_method": "quip", "bits": 2}), by_hand=True),
    Fault("AWQ that does not say its bits", "vllm", "start",
          Expect(("bits",), family="quant-dtype", causes=("quantisation-unknown",)),
          late=spoiling.config(quantization_config={"quant_method": "awq", "group_size": 128})),
    Fault("a number format that does not exist", "vllm", "start",
          Expect(("float17",), family="quant-dtype|model-config", causes=("unknown-dtype",)),
          late=spoiling.config(torch_dtype="float17"), by_hand=True),
    Fault("a norm that is a word", "vllm", "start",
          Expect(("rms_norm_eps|tiny",), family="model-config", causes=("model-value-refused",)),
          late=spoiling.config(rms_norm_eps="tiny")),
)  # fmt: skip
