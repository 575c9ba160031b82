"""Train the small models that carry the quality gate on CPU targets.

Run it with the engine's Python, which has torch and transformers:

    .venv-engine/bin/python scripts/train_quality_models.py gqa OUT [--steps 400]

The models read bytes: ids 0 to 2 are special, id 3 + b is byte b. The text is the
standard library of the running Python (PSF licence). Some modules are held out, and the
prompts of the gate come from these. Training is seeded, but another CPU gives other
weights, so the weights are committed and a baseline holds for these files alone.

``quantise`` writes the INT8 and FP8 checkpoints of a trained model in the
compressed-tensors format: weights per channel, activations per token at run time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3NextConfig

VOCABULARY = 259
FIRST_BYTE_ID = 3
CONTEXT_TOKENS = 512
HELD_OUT = ("argparse.py", "bdb.py", "csv.py", "difflib.py", "ftplib.py", "heapq.py", "inspect.py")
HELD_OUT += ("mailbox.py", "optparse.py", "pickle.py", "queue.py", "shelve.py", "tarfile.py")
HELD_OUT += ("textwrap.py", "uuid.py", "zipfile.py")

SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHARED = {"vocab_size": VOCABULARY, "hidden_act": "silu", "max_position_embeddings": 1024}
SHAPES: dict[str, Any] = {
    "gqa": lambda: Qwen2Config(
        **SHARED, **SPECIAL, hidden_size=256, intermediate_size=640, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    "hybrid": lambda: Qwen3NextConfig(
        **SHARED, **SPECIAL, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
        num_attention_heads=2, num_key_value_heads=1, head_dim=64, tie_word_embeddings=False,
        rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        },
        linear_conv_kernel_dim=4, linear_key_head_dim=64, linear_value_head_dim=64,
        linear_num_key_heads=2, linear_num_value_heads=2, decoder_sparse_step=1,
        moe_intermediate_size=64, shared_expert_intermediate_size=64, num_experts_per_tok=2,
        num_experts=8, norm_topk_prob=True, mlp_only_layers=[], full_attention_interval=2,
        layer_types=["linear_attention", "full_attention"] * 2,
        router_aux_loss_coef=0.01, output_router_logits=True,
    ),
}  # fmt: skip


def library_bytes(*, held_out: bool) -> list[bytes]:
    """The library's modules of one side of the split, in order of their path."""
    root = Path(json.__file__).parent.parent
    paths = [*sorted(root.glob("*.py")), *sorted(root.glob("asyncio/*.py"))]
    paths += [*sorted(root.glob("email/*.py")), *sorted(root.glob("unittest/*.py"))]
    return [path.read_bytes() for path in paths if (path.name in HELD_OUT) == held_out]


def ids_of(text: bytes) -> torch.Tensor:
    """Token ids of bytes, int64."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long() + FIRST_BYTE_ID


def prompts() -> list[list[int]]:
    """One prompt of ``CONTEXT_TOKENS`` ids from the middle of each held-out module."""
    found = []
    for text in library_bytes(held_out=True):
        start = min(len(text) // 3, len(text) - CONTEXT_TOKENS)
        found.append(ids_of(text[start : start + CONTEXT_TOKENS]).tolist())
    return found


def train(kind: str, out: Path, steps: int, batch: int) -> None:
    """Train from nothing and save in BF16, as vLLM loads it."""
    torch.manual_seed(20261201)
    model = AutoModelForCausalLM.from_config(SHAPES[kind]())
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{kind}: {parameters:,} parameters", flush=True)
    text = ids_of(b"".join(library_bytes(held_out=False)))
    held = torch.tensor(prompts())
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warm = max(1, steps // 20)
    began = time.monotonic()
    for step in range(steps):
        share = (step + 1) / warm if step < warm else 1 - (step - warm) / (steps - warm)
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * max(0.02, share)
        starts = torch.randint(len(text) - CONTEXT_TOKENS, (batch,))
        chunk = torch.stack([text[start : start + CONTEXT_TOKENS] for start in starts])
        loss = model(input_ids=chunk, labels=chunk).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 25 == 0 or step + 1 == steps:
            print(
                f"step {step}: loss {loss.item():.3f}, {time.monotonic() - began:.0f} s", flush=True
            )
    model.eval()
    with torch.no_grad():
        found = model(input_ids=held, labels=held)
        logits = torch.log_softmax(found.logits[:, :-1].float(), -1)
        nll = -logits.gather(-1, held[:, 1:, None]).mean().item()
    print(f"held out: {nll:.4f} nats a byte (uniform {math.log(VOCABULARY):.2f})", flush=True)
    model.to(torch.bfloat16).save_pretrained(out)


def quantise(source: Path, out: Path, scheme: str) -> None:
    """Write the checkpoint with its linear layers in ``int8`` or ``fp8``."""
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((source / "config.json").read_text("utf-8"))
    kind, most = ("int", 127.0) if scheme == "int8" else ("float", 448.0)
    element = torch.int8 if scheme == "int8" else torch.float8_e4m3fn
    tensors: dict[str, torch.Tensor] = {}
    for name, value in load_file(source / "model.safetensors").items():
        if not name.endswith("proj.weight"):
            tensors[name] = value
            continue
        wide = value.float()
        scale = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / most
        stored = wide / scale
        stored = stored.round().clamp(-most, most) if scheme == "int8" else stored
        tensors[name] = stored.to(element).contiguous()
        tensors[name.removesuffix("weight") + "weight_scale"] = scale.to(torch.bfloat16)
    shared = {"num_bits": 8, "type": kind, "symmetric": True}
    weights = {**shared, "strategy": "channel", "dynamic": False}
    activations = {**shared, "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if scheme == "int8" else "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")


def main() -> int:
    """Train, quantise, or print the prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("gqa", "hybrid", "int8", "fp8", "prompts"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", type=Path, help="the trained model that is quantised")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    if given.what == "prompts":
        given.out.write_text(
            json.dumps({"schema_version": 1, "prompts": prompts()}) + "\n", "utf-8"
        )
    elif given.what in SHAPES:
        train(given.what, given.out, given.steps, given.batch)
    elif given.source is None:
        parser.error("--source is needed to quantise")
    else:
        quantise(given.source, given.out, given.what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
