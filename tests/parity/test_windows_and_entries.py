"""DeepSeek V4 against transformers where nothing is rounded: windows, compressed entries of both kinds, a choice among
them that binds, residual streams, experts by table and by score."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from appliance.checkpoint.config import read_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.experts import TABLE
from appliance.models.base import BuildContext
from appliance.models.layers.hyper_connected import HyperConnectedDecoder
from appliance.models.registry import build
from kernels.binding import bind
from tests.configured import engine_config
from tests.engine.drafted import Guesser
from tests.parity.conftest import distribution, generate, greedy, make_engine, prompts, tokens
from tests.parity.ranks import together
from tests.tiny_deepseek_v4 import QUANTISED, write_deepseek_v4

# Of the logits, the largest of which are near 5.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_deepseek_v4(tmp_path_factory.mktemp("v4") / "model")


@pytest.fixture(scope="module")
def model(checkpoint, oracle):
    return oracle(checkpoint)


def asked(length: int = 300) -> dict[str, list[int]]:
    return prompts(2, (length,))


def engine(folder, group=None, **changes):
    limits = {"max_model_len": 512, "block_size": 128, "num_blocks": 24, "num_snapshots": 6} | changes
    return make_engine(folder, **limits) if group is None else make_engine(folder, group, **limits)


@pytest.fixture(scope="module")
def expected(model):
    """The oracle's log probabilities behind every token of two prompts of 300."""
    with torch.inference_mode():
        found = {name: model(torch.tensor([prompt])).logits[0] for name, prompt in asked().items()}
    assert 3 < max(logits.abs().max().item() for logits in found.values()) < 8
    return {name: torch.log_softmax(logits, -1) for name, logits in found.items()}


@pytest.mark.parametrize("cut", [3, 7, 130, 512])
def test_300_tokens_in_chunks_and_from_the_prefix_cache(checkpoint, expected, cut):
    found = engine(checkpoint, max_num_batched_tokens=cut, max_num_seqs=3)
    for _ in range(2):
        for name, prompt in asked().items():
            torch.testing.assert_close(distribution(found, prompt), expected[name][-1], atol=TOLERANCE, rtol=0)
    assert found.scheduler.prompt_tokens_cached == 2 * 256


def test_first_tokens_and_borders(checkpoint, expected):
    """Before there is an entry, where one is completed, where the window is full, and where a block is."""
    found = engine(checkpoint, max_num_batched_tokens=50)
    for length in (1, 2, 3, 4, 5, 8, 9, 127, 128, 129, 255, 256, 257):
        reached = distribution(found, asked()["r0"][:length])
        torch.testing.assert_close(reached, expected["r0"][length - 1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("index_topk", 512),
        ("swiglu_limit", 0.0),
        ("compress_rope_theta", 10000.0),
        ("rope_theta", 160000.0),
        ("sliding_window", 64),
        ("hc_sinkhorn_iters", 1),
    ],
)
def test_what_the_other_tests_compare_matters(checkpoint, expected, key, other):
    """With another value the numbers are others, so that a wrong one would be seen."""
    path = checkpoint / "config.json"
    given = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(given) | {key: other}))
        found = distribution(engine(checkpoint), asked()["r0"])
    finally:
        path.write_text(given)
    assert (found - expected["r0"][-1]).abs().max() > 1e-3


def test_64_greedy_tokens_alone_together_and_from_prefixes(checkpoint, model):
    """Some with a common beginning of more than a block."""
    shared = asked()["r0"]
    prompted = {name: shared[:140] + prompt for name, prompt in prompts(2, (3, 95)).items()}
    prompted |= {"short": shared[:5], "other": asked()["r1"][:110], "long": asked()["r1"]}
    calm = generate(engine(checkpoint, prefix_caching=False, max_num_batched_tokens=512), prompted)
    written = {name: tokens(outputs) for name, outputs in calm.items()}
    assert {len(found) for found in written.values()} == {64}
    assert written == greedy(model, prompted, written)
    assert tokens(generate(engine(checkpoint), {"long": prompted["long"]})["long"]) == written["long"]
    warm = engine(checkpoint, max_num_batched_tokens=50)
    for _ in range(2):
        found = {name: tokens(outputs) for name, outputs in generate(warm, prompted).items()}
        assert found == written
    assert warm.scheduler.prompt_tokens_cached >= 128 + 256


def test_preempted_requests_write_the_same(tmp_path):
    """Two that begin in a block each and need three to their ends, where there are four."""
    checkpoint = write_deepseek_v4(tmp_path / "model", num_hidden_layers=2, compress_ratios=[4, 128])
    prompted = prompts(2, (120, 126))
    calm, tight = (engine(checkpoint, num_blocks=count, max_num_batched_tokens=64) for count in (24, 4))
    calm_tokens, found = (
        {name: tokens(outputs) for name, outputs in generate(each, prompted, max_tokens=140).items()}
        for each in (calm, tight)
    )
    assert found == calm_tokens
    assert tight.scheduler.num_preemptions > 0


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "overlapped"])
def test_drafts_leave_nothing_in_windows_and_entries(checkpoint, overlaps):
    """Right ones and wrong ones, around the ends of windows and entries and of the blocks that are shared; a cold run
    and a warm one."""
    prompted = {f"{length}": prompts(1, (length,))["r0"] for length in (1, 3, 120, 125, 127, 250, 254)}
    changes = {"max_num_batched_tokens": 64, "num_blocks": 40}
    plain = engine(checkpoint, **changes)
    expected = {name: tokens(outputs) for name, outputs in generate(plain, prompted, max_tokens=24).items()}
    drafting = engine(checkpoint, drafts="ngram", num_speculative_tokens=4, **changes)
    drafting.overlaps = overlaps
    drafts = drafting.scheduler.drafts
    assert drafts is not None
    for wrong in (3, 2):
        drafts._proposer = Guesser(expected, wrong)
        found = {name: tokens(outputs) for name, outputs in generate(drafting, prompted, max_tokens=24).items()}
        assert found == expected
    assert drafting.scheduler.prompt_tokens_cached >= 2 * 128
    assert drafts.num_drafted > drafts.num_accepted > 100


@pytest.mark.parametrize("length", [127, 128, 129, 130, 255, 256, 257, 260])
def test_warm_equals_cold_at_borders_and_beside_them(checkpoint, length):
    cold, warm = engine(checkpoint, prefix_caching=False), engine(checkpoint)
    prompt = asked()["r0"][:length]
    wanted = tokens(generate(cold, {"r": prompt}, max_tokens=12)["r"])
    for known in (0, (length - 1) // 128 * 128):
        outputs = generate(warm, {"r": prompt}, max_tokens=12)["r"]
        assert (tokens(outputs), outputs[0].num_cached_tokens) == (wanted, known)


@pytest.mark.parametrize("experts", ["fp4", "fp8"])
def test_quantised_checkpoints_are_their_multiplied_out_twins(tmp_path, experts):
    """In one rank and in two: FP8 with scales of a byte each, experts in FP8 or MXFP4."""
    layers = {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128]}
    sizes = QUANTISED | layers | {"expert_dtype": experts, "o_lora_rank": 128, "moe_intermediate_size": 256}
    quantised = write_deepseek_v4(tmp_path / "quantised", **sizes)
    plain = write_deepseek_v4(tmp_path / "plain", multiplied_out=True, **sizes)
    prompted = {"r": asked()["r0"][:150]}
    wanted = distribution(engine(plain), prompted["r"])
    torch.testing.assert_close(distribution(engine(quantised), prompted["r"]), wanted, atol=1e-6, rtol=0)
    shared = together(2, lambda group: distribution(engine(quantised, group), prompted["r"]))
    for reached in shared:
        torch.testing.assert_close(reached, wanted, atol=TOLERANCE, rtol=0)
    # As on GPUs, where weights stay as they are: bytes, and their scales.
    backends = engine_config(quantised).backends | {"fp8_linear": "torch"}
    kept = {"keep_fp8": True, "backends": backends}
    alone = distribution(engine(quantised, **kept), prompted["r"])
    torch.testing.assert_close(alone, wanted, atol=TOLERANCE, rtol=0)
    for reached in together(2, lambda group: distribution(engine(quantised, group, **kept), prompted["r"])):
        torch.testing.assert_close(reached, wanted, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("says", "holds"), [("fp4", "fp8"), ("fp8", "fp4")])
def test_experts_of_another_format_than_the_config_says_are_refused(tmp_path, says, holds):
    """By the engine too, which preflight goes before."""
    sizes = QUANTISED | {"num_hidden_layers": 1, "compress_ratios": [0]}
    folder = write_deepseek_v4(tmp_path / "model", **sizes, expert_dtype=holds)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"expert_dtype": says}))
    with pytest.raises(ValueError, match=r"layers\.0\.ffn\.experts\.\d\.w\d\.(weight|scale)"):
        engine(folder)


def test_two_ranks_give_the_tokens_of_one(checkpoint):
    """Heads, their groups, and experts are shared out; entries, streams and routers are whole in each."""
    prompted = {"long": asked()["r0"], "short": asked()["r1"][:9]}

    def run(found):
        return {name: tokens(outputs) for name, outputs in generate(found, prompted, max_tokens=16).items()}

    wanted = run(engine(checkpoint))
    assert together(2, lambda group: run(engine(checkpoint, group))) == [wanted] * 2


def test_angles_of_positions_beyond_65k(checkpoint, model):
    """By the table: plain in layers without compressed entries; interpolated, at another base, in all others, where
    cosines and sines are not multiplied by YaRN's factor."""
    length = 70_000
    config = read_config(checkpoint)
    kernels = bind(engine_config(checkpoint).backends)
    built = build(BuildContext(config, kernels, torch.device("cpu"), torch.float32, length))
    assert isinstance(built, HyperConnectedDecoder)
    positions = torch.tensor([[0, 1, 4095, 65_535, 65_536, 69_999]])
    for layer, kind in ((0, "main"), (1, "compress"), (2, "compress"), (4, "main")):
        table = built.layers[layer].mixer._cos_sin
        cos, sin = model.model.rotary_emb(torch.zeros(1), positions, layer_type=kind)
        wanted = torch.cat((cos, sin), dim=-1)[0]
        torch.testing.assert_close(table[positions[0]], wanted, atol=1e-6, rtol=0)
    slowest = 160_000 ** (-14 / 16) / 16
    last = built.layers[1].mixer._cos_sin[69_999]
    assert last[7].item() == pytest.approx(math.cos(69_999 * slowest), abs=1e-4)
    assert last[15].item() == pytest.approx(math.sin(69_999 * slowest), abs=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_warm_equals_cold_with_packed_entries(tmp_path, oracle, dtype):
    """Near transformers in float32, which rounds nothing and so chooses as by keys in 8 bits, rather than in 4; and the
    same tokens from copies of packed windows."""
    folder = write_deepseek_v4(tmp_path / "model", torch_dtype=dtype)
    cold, warm = engine(folder, dtype=dtype, prefix_caching=False), engine(folder, dtype=dtype)
    prompt = asked()["r0"]
    with torch.inference_mode():
        exact = torch.log_softmax(oracle(folder)(torch.tensor([prompt])).logits[0, -1], -1)
    near = engine(folder, dtype=dtype, prefix_caching=False, index_key_dtype="fp8")
    assert (distribution(near, prompt) - exact).abs().mean() < 0.1
    wanted = tokens(generate(cold, {"r": prompt}, max_tokens=16)["r"])
    for known in (0, 256):
        outputs = generate(warm, {"r": prompt}, max_tokens=16)["r"]
        assert (tokens(outputs), outputs[0].num_cached_tokens) == (wanted, known)


@pytest.mark.parametrize("expert", [-1, 1 << 20])
def test_a_table_of_experts_that_are_not_there_is_refused(checkpoint, tmp_path, expert):
    """Kernels would read beyond the weights."""
    folder = shutil.copytree(checkpoint, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith(TABLE))
    tensors[name][7, 1] = expert
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as error:
        engine(folder)
    assert (error.value.id, error.value.field, error.value.value) == ("weights-unreadable", name, expert)
