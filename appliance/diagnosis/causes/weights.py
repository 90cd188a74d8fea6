"""Checkpoint files that are missing or damaged, or whose shapes do not match the config."""

from appliance.diagnosis.cause import Cause

_AGAIN = "Copy the model's files again, and compare their sizes and checksums with the source."

CAUSES = (
    Cause(
        family="weights",
        name="git-lfs-pointer",
        signs=("git-lfs", "version https", "git lfs"),
        pattern=r"git[- ]lfs",
        summary="A weight file is only a Git LFS pointer, not the file itself.",
        fix="Fetch the files themselves (git lfs pull, or download the model), and copy them again.",
        command="git lfs pull",
    ),
    Cause(
        family="weights",
        name="safetensors-damaged",
        signs=("safetensorerror", "deserializing header", "headertoolarge", "headertoosmall", "invalidheader",
               "invalidheaderdeserialization", "metadataincompletebuffer", "incomplete metadata",
               "file not fully covered", "invalidoffset", "header too large", "header too small", "safetensors"),
        pattern=r"SafetensorError|deserializ\w{1,60} header|Header(?:Too|_too| too)|InvalidHeader|IncompleteBuffer"
        r"|incomplete metadata|InvalidOffset|safetensors.{0,80}(?:truncated|ends before|damaged|too short|corrupt"
        r"|invalid)",
        summary="A weight file is damaged or was not copied completely.",
        fix=_AGAIN,
        look="ls -l *.safetensors; sha256sum *.safetensors",
    ),
    Cause(
        family="weights",
        name="weight-file-missing",
        signs=(".safetensors", ".bin", ".gguf", ".pt", "model.safetensors.index.json"),
        pattern=r"(?:No such file or directory:? '?(?P<file>[^'\n]{0,300}\.(?:safetensors|bin|pt|gguf|index\.json))"
        r"|(?<!\S)(?P<also>\S{1,200}\.(?:safetensors|gguf)).{0,20}(?:does not exist|not found|is missing))",
        summary="A weight file is missing: {file}.",
        fix="Copy the whole model folder again.",
    ),
    Cause(
        family="weights",
        name="weight-file-missing",
        signs=("referenced in index but missing", "referenced in the index but missing"),
        pattern=r"but missing:? [^\n]{0,4}?'?(?:[^'\n]{0,300}/)?(?P<file>[^'/\n]{1,200}\.(?:safetensors|bin|pt))",
        summary="A weight file named in the index is missing: {file}.",
        fix="Copy the whole model folder again.",
    ),
    Cause(
        family="weights",
        name="no-weights",
        signs=("cannot find any model weights", "cannot find any safetensors", "no safetensors weights found",
               "could not find checkpoint files", "error no file named", "no model weights found", "no weight files",
               "does not appear to have a file named pytorch_model", "no checkpoint files",
               "model weights with", "no files found"),
        summary="The model folder contains no weights in a format that the engine supports.",
        fix="Copy the whole model folder again, with its *.safetensors files.",
    ),
    Cause(
        family="weights",
        name="checkpoint-damaged",
        signs=("pytorchstreamreader", "unpicklingerror", "invalid magic number", "invalid load key",
               "ran out of input", "unexpected eof", "failed finding central directory", "weights only load failed",
               "badzipfile", "corrupted", "checksum mismatch", "hash mismatch", "consistency check failed"),
        pattern=r"streamreader|unpickling|magic|load key|ran out|eof|central|weights only|zip|corrupt|mismatch"
        r"|consistency",
        summary="A checkpoint file is damaged, or has the wrong type for its name.",
        fix=_AGAIN,
    ),
    Cause(
        family="weights",
        name="self-test-differs-from-record",
        signs=("selftesterror",),
        pattern=r"SelfTestError: (?:self-test: )?(?P<difference>[^\n]{1,600}), recorded in (?P<record>[^\n]{1,300})",
        summary="The engine runs, but its answers differ from what this checkpoint should give: {difference}.",
        fix="Copy the model again and compare its files with the source's. If the change is intended (another "
        "driver or another build), remove the recorded answer, {record}, and start again.",
    ),
    Cause(
        family="weights",
        name="self-test-differs",
        signs=("selftesterror",),
        pattern=r"SelfTestError: (?:self-test: )?(?P<difference>[^\n]{1,600})",
        summary="The engine runs, but its answers differ from what this checkpoint should give: {difference}.",
        fix="Copy the model again and compare its files with the source's.",
    ),
    Cause(
        family="weights",
        name="weight-shape",
        signs=("size mismatch for", "has shape", "of shape", "attempted to load weight",
               "is invalid for input of size", "copying a param with shape", "shape mismatch", "loaded_weight",
               "loaded weight", "exceeds dimension size", "must match the size of tensor",
               "must match the existing size", "does not match the expected shape", "mismatched shapes",
               "mismatchedshapes", "parameter shape", "tensor sizes", "param_data.shape"),
        pattern=r"size mismatch for|(?:tensor|weight|param).{0,80}(?:has|of) shape.{0,80}(?:expected|but|instead)"
        r"|attempted to load|shape .{0,40}is invalid for input of size|copying a param|mismatch|loaded.?weight"
        r"|exceeds dimension|must match the|does not match the expected shape|param_data",
        summary="A weight's shape does not match config.json, or cannot be split over this many GPUs.",
        fix="Check that config.json and the weights belong to the same model. With several GPUs, try one, or a "
        "number that divides the model's heads.",
    ),
    Cause(
        family="weights",
        name="weight-missing",
        signs=("missing", "not found", "no module or parameter named", "not initialized from checkpoint", "missing key",
               "unexpected key", "keyerror", "lacks", "no tensor", "following weights were not"),
        pattern=r"^(?!KeyError: ['\"][^'\"]{0,60}(?:required|config|rope)).{0,2000}?(?:(?:missing|no|not found|lacks)"
        r".{0,40}(?:tensor|weight|parameter"
        r"|module)s?.{0,20}[`'\"](?P<name>[\w.]{3,120})|KeyError: ['\"](?P<key>(?:[\w-]{1,60}\.){1,12}[\w-]{1,60})['\"]"
        r"|not initialized from checkpoint|(?:missing|unexpected) key.{0,20}in state_dict"
        r"|no module or parameter named)",
        summary="The checkpoint lacks a weight that the model needs, or contains one that the engine does not "
        "recognise.",
        fix="Copy the whole model folder again: a shard is missing, or the files belong to another model or format.",
    ),
    Cause(
        family="weights",
        name="weights-not-loaded",
        signs=(),
        where=r"(?:model_loader|weight_utils|load_weights|safetensors|weight_loader)[^\n]{0,200}$",
        pattern=r"^(?:\w{1,40}\.){0,8}(?:AssertionError|KeyError|ValueError|RuntimeError|IndexError|OSError"
        r"|FileNotFoundError)\b(?!.{0,300}(?:out of memory|CUDA error|quant|No space|Permission|trust_remote))",
        summary="A weight of the checkpoint could not be loaded into the model.",
        fix="Check that config.json and the weights belong to the same model and are complete.",
        vague=True,
    ),
    # From our own engine, where no row above is more specific.
    Cause(
        family="weights",
        name="model-changed-after-check",
        signs=("checkpointerror",),
        pattern=r"CheckpointError: (?P<what>[^\n]{1,400}?)\.?(?:\n|$)",
        summary="The model folder changed after it was checked: {what}.",
        fix="Make sure nothing writes to the folder while the engine starts. Copy the model again, then start.",
        broad=True,
    ),
    Cause(
        family="weights",
        name="checkpoint-refused",
        signs=("config requires", "contradicts quantization_config", "the native engine does not support"),
        pattern=r"^ValueError: (?P<what>[^\n]{1,400})",
        where=r"appliance/engine/weights\.py[^\n]{0,80}$",
        summary="The checkpoint cannot be loaded: {what}.",
        fix="Copy the whole model folder again: its files do not belong together, or changed after they were checked.",
    ),
    Cause(
        family="weights",
        name="cache-scale",
        signs=("k_scale", "v_scale"),
        pattern=r"^ValueError: (?P<what>[^\n]{1,200} is [^;\n]{1,40}); it must be a positive number",
        summary="A scale of the KV cache in the checkpoint cannot be used: {what}.",
        fix="Export the model again, or remove the scales of its cache.",
    ),
)  # fmt: skip
