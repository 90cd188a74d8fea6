"""bundle.env: what a shell has to know of a bundle, one `NAME=value` a line. It says nothing that manifest.json does
not, so a reader makes it again and compares."""

from __future__ import annotations

from appliance.bundle.manifest import Manifest


def facts(manifest: Manifest) -> dict[str, str]:
    """Names and values, in the order of the file. Sizes are in bytes; STORED_BYTES is the stored size of everything
    after the head, IMAGE_BYTES that of the images once loaded."""
    engine = manifest.image("engine")
    tags = {image.role: image.tag for image in manifest.images}
    return {
        "FORMAT": str(manifest.format),
        "KIND": manifest.kind,
        "RELEASE": manifest.release,
        "INGOT_VERSION": manifest.ingot,
        "SCHEMA": manifest.schema,
        "MACHINE": manifest.machine,
        "VARIANT": engine.variant if engine else "",
        "GPU_ARCHITECTURE": engine.architecture if engine else "",
        "WITH_VLLM": str(int(engine.vllm)) if engine else "",
        "ENGINE_IMAGE": tags.get("engine", ""),
        "CONSOLE_IMAGE": tags.get("console", ""),
        "GATE_IMAGE": tags.get("gate", ""),
        "IMAGE_BYTES": str(sum(image.size for image in manifest.images)),
        "STORED_BYTES": str(manifest.total_bytes),
        "MODEL_BYTES": str(sum(file.size for file in manifest.below("models/"))),
        "MODELS": " ".join(model.name for model in manifest.models),
        "CASTS": " ".join(manifest.casts),
        **({"PACKS": " ".join(pack.name for pack in manifest.packs)} if manifest.knows_packs else {}),
    }


def encode(manifest: Manifest) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in facts(manifest).items()).encode()
