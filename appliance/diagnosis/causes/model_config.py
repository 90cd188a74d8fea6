"""The model's own files or limits: config, architecture, context, heads, tokenizer, chat template."""

from appliance.diagnosis.cause import Cause, halved, instead, largest_divisor, number

_VLLM = {"engine": instead("engine", of="native", then="vllm")}

CAUSES = (
    Cause(
        family="model-config",
        name="context-too-long",
        signs=("greater than the derived max_model_len", "derived max_model_len", "max_model_len", "max-model-len",
               "context length", "max_position_embeddings", "context_length"),
        pattern=r"max.model.len\D{1,12}(?P<asked>\d{1,9})\)?,? .{0,80}(?:greater|larger|longer"
        r"|more) than.{0,120}?=?(?P<limit>\d{2,9})",
        summary="The profile asks for a context of {asked} tokens; the model supports {limit}.",
        fix="Remove max-model-len to use the model's own {limit} tokens.",
        patch={"max-model-len": number("limit")},
    ),
    Cause(
        family="model-config",
        name="context-too-long",
        signs=("context_length", "context length", "max_model_len"),
        pattern=r"^(?!.{0,300}Input should).{0,2000}?"
        r"(?:context.length|max_model_len).{0,80}(?:greater|larger|longer|exceeds?)\b.{0,40}(?:derived|model"
        r"|than)",
        summary="The profile asks for a longer context than the model supports.",
        fix="Remove max-model-len to use the model's own context length.",
        patch={"max-model-len": None},
    ),
    Cause(
        family="model-config",
        name="heads-not-divisible",
        signs=("attention heads", "num_heads", "num_attention_heads", "num_key_value_heads", "kv heads",
               "key/value heads"),
        pattern=r"heads? \(?(?P<heads>\d{1,9})\)?.{0,60}divisible.{0,60}tensor.{0,30}?\(?(?P<size>\d{1,9})\)?",
        summary="The model's {heads} attention heads cannot be split over {size} GPUs.",
        fix="Use a number of GPUs that divides {heads}.",
        patch={"tensor-parallel-size": largest_divisor("heads", "size")},
    ),
    Cause(
        family="model-config",
        name="kv-heads-not-divisible",
        signs=("num_heads", "num_attention_heads"),
        pattern=r"heads \(?(?P<heads>\d{1,5})\)?.{0,60}?divisible by num_(?:kv|key_value)_heads \(?(?P<shared>\d{1,5})",
        summary="The model's {heads} attention heads cannot share {shared} key-value heads evenly.",
        fix="Correct num_attention_heads and num_key_value_heads in the model's config.json: the first must be a "
        "multiple of the second.",
    ),
    Cause(
        family="model-config",
        name="not-divisible",
        signs=("must divide", "is not divisible by", "must be divisible by", "not divisible", "should be divisible",
               "be divisible by"),
        pattern=r"(?P<what>\d{1,9}) is not divisible by (?P<by>\d{1,9})"
        r"|(?:divisible by|must divide)(?: the)? (?:tensor|tp|world|num_heads|pipeline)"
        r"|(?:tensor|tp_size|world.size|pipeline).{0,80}(?:divisible|must divide)",
        summary="The model's dimensions cannot be split over this many GPUs.",
        fix="Use fewer GPUs (a smaller tensor-parallel-size); their number must divide the model's heads and "
        "dimensions.",
        patch={"tensor-parallel-size": halved("tensor-parallel-size")},
    ),
    Cause(
        family="model-config",
        name="trust-remote-code",
        signs=("trust_remote_code", "trust-remote-code", "execute the configuration file", "custom code",
               "remote code"),
        pattern=r"^(?!TypeError: ).{0,2000}?(?:trust.remote.code|execute|custom code)",
        summary="The model needs its own Python code, which the engine may not run.",
        fix="Choose a model that the engine supports, or a vLLM release that has it built in.",
        patch=_VLLM,
    ),
    Cause(
        family="model-config",
        name="architecture-not-supported",
        signs=("are not supported for now", "unsupported architecture", "does not recognize this architecture",
               "not supported", "unsupported model", "model type", "model_type",
               "is not supported yet", "unknown model architecture", "unrecognized configuration class",
               "has no vllm implementation", "no implementation", "unsupported architectures",
               "cannot find model module", "has no sglang implementation", "gguf model with", "unrecognized model",
               "should have a `model_type`", "unknown gguf"),
        pattern=r"^(?!.{0,1000}\.cuh?\b)(?:.{0,2500}?)(?:architectures?\b.{0,2500}?\b(?:not supported|unsupported)"
        r"|unsupported (?:model )?architecture"
        r"|recognize this architecture|model.type.{0,80}(?:not supported|not recognized|unsupported|unknown)"
        r"|unrecognized (?:model|config)|no \w{1,60} implementation|cannot find model module|unknown (?:model "
        r"architecture"
        r"|gguf)|`model_type`)",
        summary="The engine does not support this model's architecture.",
        fix="Run this model with the vllm engine or a newer release of it, or choose a model with a supported "
        "architecture.",
        patch=_VLLM,
    ),
    Cause(
        family="model-config",
        name="architecture-not-inspected",
        signs=("failed to be inspected", "error in inspecting model architecture",
               "vllm.model_executor.models.registry"),
        summary="The engine could not load its code for this model's architecture.",
        fix="Read the log lines before this one; a library in the image may be missing or have the wrong version.",
        patch=_VLLM,
        vague=True,
    ),
    Cause(
        family="model-config",
        name="config-not-json",
        signs=("jsondecodeerror", "json.exception.parse_error", "is not a valid json", "not valid json",
               "no valid json", "config.json",
               "invalid json", "expecting value: line"),
        pattern=r"for ModelConfig\s.{0,20}Expecting value: line"
        r"|JSONDecodeError|json\.exception|not a valid JSON|config\.json.{0,40}(?:not"
        r"|no) (?:a )?(?:valid )?JSON|invalid json",
        summary="One of the model's JSON files is invalid, or the path is not a model folder.",
        fix="Copy the model's config.json, tokenizer.json and tokenizer_config.json again: one may be cut off, or a "
        "web page in place of the file. A GGUF file needs its folder, or an engine that reads GGUF.",
    ),
    Cause(
        family="model-config",
        name="config-missing",
        signs=("file named config.json", "no config.json", "config.json", "params.json", "no config file found",
               "generation_config", "preprocessor_config.json", "configuration file"),
        pattern=r"(?:does not appear to have a file named|no such file or directory|not found|can't find|missing"
        r"|unable to load|\bno\b).{0,300}?(?:config\.json|params\.json|config file)|config\.json.{0,40}(?:missing"
        r"|not found)",
        summary="The model folder has no config.json.",
        fix="Copy the whole model folder again, or correct the path.",
    ),
    Cause(
        family="model-config",
        name="tokenizer",
        signs=("tokenizer", "sentencepiece", "tiktoken", "untagged enum", "vocab.json", "merges.txt", "spiece.model",
               "tekken"),
        pattern=r"tokenizer.{0,120}(?:missing|is present|not found|cannot|can't|could not|couldn't|invalid|unable"
        r"|does not exist|not currently|fail|no such|unknown|must be)|untagged enum|(?:can't|couldn't|could not|unable"
        r"|cannot|failed|no such file|error loading).{0,160}(?:tokenizer|sentencepiece|tiktoken|vocab|merges|tekken)"
        r"|(?:sentencepiece|tiktoken).{0,80}(?:not found|required|install|needed)",
        summary="The model's tokenizer cannot be loaded.",
        fix="Put the model's tokenizer.json (or tokenizer.model) and tokenizer_config.json into its folder. If a "
        "library such as sentencepiece is missing, use an image that includes it.",
    ),
    Cause(
        family="model-config",
        name="protobuf-missing",
        signs=("protobuf",),
        pattern=r"(?:requires|install|not found|library|needed)",
        summary="The model's tokenizer needs the protobuf library, which is not installed.",
        fix="Put the model's tokenizer.json into its folder, or use an image that includes protobuf and "
        "sentencepiece.",
        command="python -m pip install protobuf sentencepiece",
    ),
    Cause(
        family="model-config",
        name="no-config-file",
        signs=("invalid repository id or local directory specified",),
        details=r"directory specified: '(?P<path>[^'\n]{1,300})'",
        summary="There is no config.json that can be read in {path}.",
        fix="Correct the path, or copy the model's config.json there. In a container, check the mount.",
        look="ls -lL {path}",
    ),
    Cause(
        family="model-config",
        name="chat-template",
        signs=("chat template", "chat_template", "templatesyntaxerror", "templateerror", "jinja2.exceptions",
               "undefinederror"),
        pattern=r"^(?!.{0,2000}appears path-like).{0,4000}?(?:template|undefined)",
        summary="The model's chat template is missing or invalid.",
        fix="Copy tokenizer_config.json and chat_template.jinja from the model's source again.",
    ),
    Cause(
        family="model-config",
        name="rope",
        signs=("rope_scaling", "rope_parameters", "rope scaling", "rope_type", "rope type"),
        pattern=r"(?:must|unknown|invalid|unsupported|missing|not|keyerror|should)",
        summary="The engine does not support the RoPE scaling in the model's config.json.",
        fix="Use a config.json that matches this engine release, or a newer engine.",
    ),
    Cause(
        family="model-config",
        name="processor",
        signs=("image processor", "feature extractor", "processor class", "preprocessor", "multimodal", "multi-modal",
               "processor_config", "mm_processor", "autoprocessor"),
        pattern=r"(?:can't|couldn't|cannot|fail|not found|missing|unable|invalid|unrecognized|error|no )",
        summary="The model's image or audio processor cannot be loaded.",
        fix="Copy preprocessor_config.json and processor_config.json from the model's source again.",
    ),
    Cause(
        family="model-config",
        name="config-field",
        signs=("object has no attribute",),
        pattern=r"'(?P<config>(?!Speculative|Vllm|Parallel|Scheduler|Cache|LoRA|Compilation|Load|Device|Model|Kernel"
        r"|Attention|Structured|Observability|KVTransfer)\w{0,60}Config)'"
        r" object has no attribute '(?P<field>\w{1,60})'",
        summary="The model's config.json has no {field}, which the engine needs.",
        fix="Check that config.json belongs to this model and this engine release supports it; otherwise use a "
        "newer engine.",
        patch=_VLLM,
    ),
    Cause(
        family="model-config",
        name="config-field",
        signs=("keyerror", "validation error for", "typed-dict"),
        where=r"(?:transformers_utils|transformers/(?:models|configuration)|configuration_"
        r"|model_config)[^\n]{0,200}$",
        pattern=r"^(?:KeyError|\w{1,60}\.?\w{0,60}ValidationError)",
        summary="The model's config.json lacks a field that the engine needs.",
        fix="Check that config.json belongs to this model and this engine release supports it; otherwise use a "
        "newer engine.",
        vague=True,
    ),
    Cause(
        family="model-config",
        name="config-not-read",
        signs=(),
        where=r"(?:transformers_utils/config|transformers/(?:models/auto|configuration_utils|tokenization|modeling)"
        r"|configs?/model_config)[^\n]{0,200}$",
        pattern=r"^(?!.{0,60}(?:Permission|No space|ImportError|ModuleNotFound))",
        summary="The engine could not read the model's own files.",
        fix="Check that the folder is complete and the model is supported.",
        vague=True,
    ),
)  # fmt: skip
