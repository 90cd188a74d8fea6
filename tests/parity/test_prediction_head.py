"""Heads for multi-token prediction: each against transformers, or its layers put together by the formulas where
transformers leaves heads out; and their drafts in the engine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from appliance.engine.engine import Engine
from appliance.models.collectives import Group
from appliance.protocol import StepKind
from tests.engine.computed_graphs import compute_graphs
from tests.parity.conftest import generate, make_engine, prompts, tokens
from tests.parity.ranks import together
from tests.tiny import write_checkpoint
from tests.tiny_deepseek_v4 import write_deepseek_v4
from tests.tiny_shapes import LATENT

MTP = {"drafts": "mtp", "num_speculative_tokens": 1}
HEADS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"num_nextn_predict_layers": 1},
    "deepseek_v32": {"num_nextn_predict_layers": 1},
    "glm_moe_dsa": {"num_nextn_predict_layers": 1},
    "qwen3_next": {"mtp_num_hidden_layers": 1},
    "qwen3_5": {"mtp_num_hidden_layers": 1},
    "qwen3_5_moe": {"mtp_num_hidden_layers": 1},
}


class Names(NamedTuple):
    """What checkpoints call a head's norms, its projection and its block."""

    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    block: str


AS_V3 = Names(
    "model.layers.3.enorm.weight", "model.layers.3.hnorm.weight", "model.layers.3.eh_proj.weight",
    "model.layers.3.shared_head.norm.weight", "model.layers.3.",
)  # fmt: skip
AS_QWEN = Names(
    "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.fc.weight", "mtp.norm.weight",
    "mtp.layers.0.",
)  # fmt: skip


# The cache of a model whose blocks are larger than those of others here.
V4 = {"block_size": 128, "num_blocks": 24}


@pytest.fixture(scope="module", params=[*HEADS, "deepseek_v4"])
def family(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    if family == "deepseek_v4":
        write_deepseek_v4(folder)
        (folder / "of-v4").touch()
        return folder
    return write_checkpoint(folder, family, seed=2, **HEADS[family])


def engine_of(folder: Path, *group: Group, **config: Any) -> Engine:
    return make_engine(folder, *group, **(V4 if (folder / "of-v4").exists() else {}), **config)


def drafting(folder, *group: Group, **config: Any) -> tuple[Engine, dict[int, Tensor]]:
    """An engine, and what its head gives behind each position, the last one for each."""
    engine = engine_of(folder, *group, **MTP, **config)
    given: dict[int, Tensor] = {}
    drafter = engine._runner._model.drafter
    assert drafter is not None
    forward = drafter.forward

    def watched(batch, hidden, cache):
        found = forward(batch, hidden, cache)
        given.update(zip(batch.positions.tolist(), found, strict=True))
        return found

    drafter.forward = watched  # type: ignore[method-assign]
    return engine, given


def expected_of(family: str, folder: Path, model: Any, whole: Tensor) -> Tensor:
    """What the output head makes logits of, behind each token of `whole` [1, N] but the last: [N - 1, hidden]."""
    if family == "deepseek_v4":
        return _of_streams(folder, model, whole)
    hidden = model.model(whole).last_hidden_state[:, :-1]
    positions = torch.arange(hidden.shape[1])[None]
    if family == "deepseek_v3":
        from transformers.modeling_layers import MtpModel

        model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.3\..*"]  # by which it is found; as published, 61
        head = MtpModel.from_pretrained(model)
        found: Tensor = head.forward_layer(0, hidden, positions, None, input_ids=whole[:, 1:])[0]
        return found
    weights, names = load_file(folder / "model.safetensors"), AS_V3 if family in LATENT else AS_QWEN
    norm = type(model.model.norm)

    def normed(name: str, x: Tensor) -> Tensor:
        layer = norm(x.shape[-1], eps=model.config.rms_norm_eps)
        layer.weight.copy_(weights[name])
        result: Tensor = layer(x)
        return result

    both = (
        normed(names.embedding_norm, model.model.embed_tokens(whole[:, 1:])),
        normed(names.hidden_norm, hidden),
    )
    x = torch.cat(both, dim=-1) @ weights[names.projection].T
    alike = 2 if family in LATENT else model.config.layer_types.index("full_attention")
    layer = type(model.model.layers[alike])(model.config, alike)
    missing, _ = layer.load_state_dict(_fused(weights, names.block, layer), strict=False)
    assert not missing
    count = x.shape[1]
    mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
    angles = model.model.rotary_emb(x, positions)
    out = layer(x, position_embeddings=angles, attention_mask=mask, position_ids=positions)
    return normed(names.norm, out[0] if isinstance(out, tuple) else out)[0]


def _of_streams(folder: Path, model: Any, whole: Tensor) -> Tensor:
    """DeepSeek V4's: its block as the one layer of a model, which is given what the head makes of the streams of the
    other, and ends with the head's own sum and norm."""
    from transformers import AutoModelForCausalLM

    weights = load_file(folder / "model.safetensors")
    at = "mtp.0."
    own = ("norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale")
    others = [name for name in weights if not name.startswith(("layers.", at))]
    alone = {name: weights[f"{at}{name}" if name in own else name] for name in others}
    for name in weights:
        if name.startswith((f"{at}attn", f"{at}ffn", f"{at}hc_attn", f"{at}hc_ffn")):
            alone["layers.0." + name.removeprefix(at)] = weights[name]
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "compress_ratios": [0], "num_hash_layers": 0, "num_nextn_predict_layers": 0}
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(config))
        save_file(alone, Path(name) / "model.safetensors", metadata={"format": "pt"})
        block = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, attn_implementation="eager").eval()
    seen: list[Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda _layer, _given, out: seen.append(out))
    model.model(whole)
    streams = seen[0][:, :-1]
    eps = config["rms_norm_eps"]

    def normed(name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weights[f"{at}{name}.weight"]

    embedded = normed("enorm", model.model.embed_tokens(whole[:, 1:])) @ weights[f"{at}e_proj.weight"].T
    begun = normed("hnorm", streams) @ weights[f"{at}h_proj.weight"].T + embedded.unsqueeze(2)
    block.model.layers[0].register_forward_pre_hook(lambda _layer, args: (begun, *args[1:]))
    found: Tensor = block.model(whole[:, 1:]).last_hidden_state[0]
    return found


def _fused(weights: dict[str, Tensor], block: str, layer: torch.nn.Module) -> dict[str, Tensor]:
    """Of the head's layer, with its experts as transformers has them in memory."""
    own = {name.removeprefix(block): tensor for name, tensor in weights.items() if name.startswith(block)}
    wanted = layer.state_dict()
    if (gate_up := "mlp.experts.gate_up_proj") in wanted and gate_up not in own:
        count = len(wanted[gate_up])
        gate, up, down = (
            torch.stack([own.pop(f"mlp.experts.{expert}.{part}_proj.weight") for expert in range(count)])
            for part in ("gate", "up", "down")
        )
        own |= {gate_up: torch.cat((gate, up), dim=1), "mlp.experts.down_proj": down}
    return own


@torch.inference_mode()
@pytest.mark.parametrize("budget", [256, 7], ids=["whole", "chunks"])
def test_its_hidden_states_are_those_of_the_formulas(family, folder, oracle, budget):
    """Over a prompt in chunks, decodes, and drafts that were rejected."""
    engine, given = drafting(folder, max_num_batched_tokens=budget)
    prompt = list(range(9, 60))
    whole = torch.tensor([prompt + tokens(generate(engine, {"r": prompt}, max_tokens=20)["r"])])
    expected = expected_of(family, folder, oracle(folder), whole)
    seen = torch.stack([given[position] for position in range(len(expected))])
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapping"])
def test_answers_are_those_without_drafts(folder, overlaps):
    asked = prompts(6)
    sampling = {"max_tokens": 40, "temperature": 0.8, "seed": 3}
    expected = {name: tokens(found) for name, found in generate(engine_of(folder), asked, **sampling).items()}
    engine, _ = drafting(folder)
    engine.overlaps = overlaps
    assert {name: tokens(found) for name, found in generate(engine, asked, **sampling).items()} == expected
    drafts = engine.scheduler.drafts
    assert drafts is not None
    assert drafts.num_drafted > 100


@pytest.mark.parametrize("with_prompts", [False, True])
def test_it_predicts_the_same_by_graphs_of_its_own(family, folder, monkeypatch, with_prompts):
    """Of decodes alone, and beside prompts."""
    if with_prompts and family in (*LATENT, "deepseek_v4"):
        pytest.skip("no graph holds prompts")
    asked = prompts(9)
    sampling = {"max_tokens": 30, "temperature": 0.5, "seed": 1}
    plain, given = drafting(folder)
    expected = generate(plain, asked, **sampling)
    compute_graphs(monkeypatch)
    engine, others = drafting(folder, enforce_eager=False, prefill_graphs=with_prompts)
    found = generate(engine, asked, **sampling)
    assert {name: tokens(told) for name, told in found.items()} == {
        name: tokens(told) for name, told in expected.items()
    }
    assert engine.steps[StepKind.GRAPH] > 20
    assert bool(engine.steps[StepKind.MIXED_GRAPH]) == with_prompts
    drafts, of_plain = engine.scheduler.drafts, plain.scheduler.drafts
    assert drafts is not None
    assert of_plain is not None
    assert (drafts.num_drafted, drafts.num_accepted) == (of_plain.num_drafted, of_plain.num_accepted)
    assert given.keys() <= others.keys()


def test_what_it_predicts_is_accepted_where_the_model_agrees(folder):
    """Both are made to say one token by its bias here and by the head's last norm there."""
    engine, _ = drafting(folder)
    model: Any = engine._runner._model
    model.drafter.norm.weight.fill_(-model.drafter.norm._offset)
    # Of equal logits the first token is taken.
    found = generate(engine, {"r": [9, 8, 7]}, max_tokens=40, logit_bias={0: 100.0})["r"]
    assert tokens(found) == [0] * 40
    assert engine.scheduler.drafts is not None
    assert engine.scheduler.drafts.num_accepted == 19
    assert sum(engine.steps.values()) == 21


def test_ranks_predict_alike(folder):
    def run(group) -> tuple[dict[str, list[int]], int]:
        engine, _ = drafting(folder, group)
        found = {name: tokens(outputs) for name, outputs in generate(engine, prompts(3), max_tokens=20).items()}
        assert engine.scheduler.drafts is not None
        return found, engine.scheduler.drafts.num_drafted

    first, second = together(2, run)
    assert first == second
    assert first[1] > 20
