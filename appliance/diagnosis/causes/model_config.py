"""The model's own files or limits: config, tokenizer, architecture, context."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="model-config",
        name="architecture-not-supported",
        pattern=r"architectures?.{0,60}\b(not supported|unsupported)|unsupported architecture"
        r"|does not recognize this architecture",
        summary="The engine does not have this model's architecture.",
        fix="Run this model with the vllm engine, or choose a model of a supported architecture.",
        patch={"engine": "vllm"},
    ),
    Cause(
        family="model-config",
        name="context-too-long",
        pattern=r"max.model.len\D{1,12}(?P<asked>\d+).{0,80}"
        r"(greater|larger|longer|more) than.{0,120}?(?P<limit>\d{3,})",
        summary="The profile asks for a context of {asked} tokens, and the model was made for {limit}.",
        fix="Leave max-model-len out, so that the model's own length holds.",
        patch={"max-model-len": None},
    ),
    Cause(
        family="model-config",
        name="config-not-json",
        pattern=r"JSONDecodeError|not a valid JSON file|config\.json.{0,40}(not|no) (valid )?JSON",
        summary="One of the model's JSON files cannot be read.",
        fix="Copy the model's config.json, tokenizer.json and tokenizer_config.json again: one is cut off or is "
        "a web page instead of the file.",
    ),
    Cause(
        family="model-config",
        name="tokenizer",
        pattern=r"tokenizer.{0,60}(missing|not found|cannot|can't|could not|invalid|unable)",
        summary="The model's tokenizer cannot be loaded.",
        fix="Put the model's tokenizer.json into its folder.",
    ),
)
