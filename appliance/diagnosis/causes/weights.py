"""Checkpoint files that are missing, damaged, or of other shapes than the config says."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="weights",
        name="safetensors-damaged",
        pattern=r"SafetensorError|deserializ\w+ header|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer"
        r"|incomplete metadata, file not fully covered|safetensors.{0,80}(truncated|ends before|damaged|too short)",
        summary="A weight file is damaged or was not copied to its end.",
        fix="Copy the model's *.safetensors files again, and compare their sizes with the source's.",
    ),
    Cause(
        family="weights",
        name="weight-missing",
        pattern=r"(missing|no|not found).{0,40}(tensor|weight|parameter)s?.{0,10}[`'\"](?P<name>[\w.]+)|"
        r"KeyError: '(?P<key>model\.[\w.]+)'",
        summary="The checkpoint lacks a weight that the model needs.",
        fix="Copy the whole model folder again: a shard is missing, or the files belong to another model.",
    ),
    Cause(
        family="weights",
        name="weight-shape",
        pattern=r"size mismatch for|(tensor|weight|parameter).{0,80}(has|of) shape.{0,80}(expected|but|instead)"
        r"|shape .{0,40}is invalid for input of size",
        summary="A weight has another shape than config.json says.",
        fix="config.json and the weights are not of the same model: copy the whole model folder again.",
    ),
    Cause(
        family="weights",
        name="weight-file-missing",
        pattern=r"No such file or directory: '(?P<file>[^']+\.(safetensors|bin|pt|gguf))'",
        summary="The weight file {file} is missing.",
        fix="Copy the whole model folder again.",
    ),
    Cause(
        family="weights",
        name="self-test-differs-from-record",
        pattern=r"SelfTestError: (self-test: )?(?P<difference>.+), recorded in (?P<record>.+)",
        summary="The engine runs, but not as this checkpoint should: {difference}.",
        fix="Copy the model again and compare its files with the source's. If the change is intended (another driver "
        "or another build), remove the recorded answer, {record}, and start again.",
    ),
    Cause(
        family="weights",
        name="self-test-differs",
        pattern=r"SelfTestError: (self-test: )?(?P<difference>.+)",
        summary="The engine runs, but not as this checkpoint should: {difference}.",
        fix="Copy the model again and compare its files with the source's.",
    ),
)
