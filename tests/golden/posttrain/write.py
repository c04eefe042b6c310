"""Writes this folder: losses, gradients and AdamW steps of preference objectives, computed by TRL 1.10's own trainers.

The models are a tiny Qwen2 with biases and tied embeddings ("policy"), and the same model with noise ("reference"). The
arithmetic is float64; files hold float32. TRL's functions run on a stand-in for the trainer, which has only the settings
that they read.

Requires: pip install torch transformers trl==1.10.0"""

import json
import pathlib
import types
from collections import defaultdict

import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import DPOTrainer
from trl.experimental.cpo.cpo_trainer import CPOTrainer
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

HERE = pathlib.Path(__file__).resolve().parent
VOCAB, PAD, BOS, EOS = 60, 0, 1, 2
LEARNING_RATE = 2e-4
SHOWN = ("layers.0.self_attn.k_proj.bias", "layers.0.input_layernorm.weight", "model.norm.weight")
COMPLETE = ("sigmoid", "kto")  # cases with the gradients of all weights, and their norms


def make_models():
    config = Qwen2Config(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                         num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=BOS,
                         eos_token_id=EOS, pad_token_id=PAD, use_cache=False)
    torch.manual_seed(36)
    models = {}
    for name in ("policy", "reference"):
        model = Qwen2ForCausalLM(config).float()
        with torch.no_grad():
            for key, p in model.named_parameters():
                if name == "policy":
                    norm = "norm" in key
                    p.copy_(torch.randn_like(p) * (0.1 if norm else 0.3) + norm)
                else:
                    p.copy_(models["policy"].get_parameter(key) + 0.02 * torch.randn_like(p))
        folder = HERE / "model" / name
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        models[name] = model
    return {name: model.double() for name, model in models.items()}


def padded(rows, value=0):
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def masked(prompts, answers):
    return {"input_ids": padded([p + a for p, a in zip(prompts, answers)]),
            "attention_mask": padded([[1] * (len(p) + len(a)) for p, a in zip(prompts, answers)]),
            "completion_mask": padded([[0] * len(p) + [1] * len(a) for p, a in zip(prompts, answers)])}


def make_batches():
    draw = torch.Generator().manual_seed(45)

    def tokens(low, high):
        count = int(torch.randint(low, high, (), generator=draw))
        return torch.randint(3, VOCAB, (count,), generator=draw).tolist()

    pairs = [{"prompt": tokens(3, 8), "chosen": tokens(1, 9) + [EOS], "rejected": tokens(1, 9) + [EOS]} for _ in range(4)]
    prompts = [p["prompt"] for p in pairs]
    chosen, rejected = [p["chosen"] for p in pairs], [p["rejected"] for p in pairs]
    pref = masked(prompts * 2, chosen + rejected)
    # KTO: the rejected answer of pair 1 is left out; each answer is mismatched with the prompt of the next example.
    singles = [(p["prompt"], p[side], side == "chosen") for i, p in enumerate(pairs) for side in ("chosen", "rejected")
               if (i, side) != (1, "rejected")]
    kto = masked([s[0] for s in singles], [s[1] for s in singles])
    shifted = [singles[-1][1]] + [s[1] for s in singles[:-1]]
    kto.update({f"KL_{k}": v for k, v in masked([s[0] for s in singles], shifted).items()})
    kto["label"] = torch.tensor([int(s[2]) for s in singles])
    contrast = {}
    for side, answers in (("chosen", chosen), ("rejected", rejected)):
        contrast[f"{side}_input_ids"] = padded([[BOS] + p + a for p, a in zip(prompts, answers)])
        contrast[f"{side}_attention_mask"] = padded([[1] * (1 + len(p) + len(a)) for p, a in zip(prompts, answers)])
        contrast[f"{side}_labels"] = padded([[-100] * (1 + len(p)) + a for p, a in zip(prompts, answers)], -100)
    return pairs, {"pref_batch": pref, "kto_batch": kto, "orpo_batch": contrast, "cpo_batch": contrast}


def stand_in(trainer, **settings):
    """Returns an object with the trainer's functions and only these settings."""
    accelerator = types.SimpleNamespace(device=torch.device("cpu"), gather=lambda x: x, gather_for_metrics=lambda x: x,
                                        unwrap_model=lambda m: m)
    at = types.SimpleNamespace(accelerator=accelerator, aux_loss_enabled=False, is_encoder_decoder=False, _total_train_tokens=0,
                               _metrics=defaultdict(lambda: defaultdict(list)), precompute_ref_logps=False,
                               use_liger_kernel=False, padding_value=PAD, pad_token_id=PAD, **settings)
    for name in ("_compute_kl_logps", "concatenated_forward", "odds_ratio_loss", "cpo_loss"):
        if hasattr(trainer, name):
            setattr(at, name, types.MethodType(getattr(trainer, name), at))
    for name in ("concatenated_inputs", "get_batch_logps"):
        if hasattr(trainer, name):
            setattr(at, name, getattr(trainer, name))
    return at


DPO = {"loss_types": ["sigmoid"], "loss_weights": [1.0], "beta": 0.1, "label_smoothing": 0.0, "ld_alpha": None,
       "f_divergence_type": "reverse_kl", "f_alpha_divergence_coef": 0.5, "use_weighting": False}


def cases():
    for kind in ("sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero", "apo_down",
                 "discopop", "sft", "sigmoid_norm"):
        yield kind, "dpo", {**DPO, "loss_types": [kind]}
    yield "exo_pair", "dpo", {**DPO, "loss_types": ["exo_pair"], "label_smoothing": 0.001}
    yield "robust", "dpo", {**DPO, "loss_types": ["robust"], "label_smoothing": 0.1}
    yield "aot_smooth", "dpo", {**DPO, "loss_types": ["aot"], "label_smoothing": 0.2}
    yield "mpo_mix", "dpo", {**DPO, "loss_types": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0]}
    yield "ld_alpha", "dpo", {**DPO, "ld_alpha": 0.3}
    for kind in ("forward_kl", "js_divergence"):  # TRL computes alpha_divergence only up to fp32
        yield kind, "dpo", {**DPO, "f_divergence_type": kind}
    yield "kto", "kto", {"beta": 0.1}
    yield "kto_weights", "kto", {"beta": 0.3, "desirable_weight": 1.33, "undesirable_weight": 0.8}
    yield "kto_swapped", "kto", {"beta": 0.2, "policy": "reference", "reference": "policy"}
    yield "apo_zero_unpaired", "kto", {"beta": 0.1, "loss_type": "apo_zero_unpaired"}
    yield "orpo", "orpo", {"beta": 0.1}
    yield "cpo", "cpo", {"beta": 0.1}
    yield "cpo_smooth", "cpo", {"beta": 0.1, "label_smoothing": 0.2}
    yield "simpo", "cpo", {"beta": 2.0, "loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.5}
    yield "cpo_simpo", "cpo", {"beta": 2.0, "loss_type": "simpo", "cpo_alpha": 1.0, "simpo_gamma": 0.5}
    yield "cpo_ipo", "cpo", {"beta": 0.1, "loss_type": "ipo"}
    yield "cpo_hinge", "cpo", {"beta": 0.1, "loss_type": "hinge"}


def loss_of(kind, settings, model, reference, batches):
    """Returns the loss and the metrics of TRL's trainer."""
    if kind in ("dpo", "kto"):
        trainer = DPOTrainer if kind == "dpo" else KTOTrainer
        given = {k: v for k, v in settings.items() if k not in ("policy", "reference")}
        if kind == "dpo":
            given["args"] = types.SimpleNamespace(discopop_tau=0.05, gradient_checkpointing_kwargs=None,
                                                  gradient_checkpointing=False)
        else:
            given = {"loss_type": "kto", "desirable_weight": 1.0, "undesirable_weight": 1.0, **given}
            given["calculate_KL"] = given["loss_type"] == "kto"
            given["args"] = types.SimpleNamespace(gradient_checkpointing_kwargs=None, gradient_checkpointing=False)
        at = stand_in(trainer, model=model, ref_model=reference, **given)
        batch = batches["pref_batch" if kind == "dpo" else "kto_batch"]
        loss = trainer._compute_loss(at, model, dict(batch), False)
        # Entropy and mean logits are not compared, because they are not metrics of the loss.
        metrics = {k: v[0] for k, v in at._metrics["train"].items() if k.startswith(("rewards/", "logps/")) or k == "kl"}
        return loss, metrics
    trainer = ORPOTrainer if kind == "orpo" else CPOTrainer
    given = {"alpha": 0.0, "label_smoothing": 0.0, "loss_type": "sigmoid", "cpo_alpha": 1.0, "simpo_gamma": 0.5, **settings}
    at = stand_in(trainer, **given)
    loss, metrics = trainer.get_batch_loss_metrics(at, model, dict(batches[f"{kind}_batch"]))
    return loss, {k: float(v) for k, v in metrics.items() if not k.startswith("logits/")}


def main():
    torch.set_num_threads(1)
    make_models()
    pairs, batches = make_batches()
    out = {"pairs": pairs, "learning_rate": LEARNING_RATE,
           "adamw": {"betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}, "cases": {}}
    gradients = {}
    pref = batches["pref_batch"]
    for name in ("policy", "reference"):
        with torch.no_grad():
            model = Qwen2ForCausalLM.from_pretrained(HERE / "model" / name).double().eval()
            logits = model(pref["input_ids"], attention_mask=pref["attention_mask"]).logits[:, :-1]
        per_token = logits.log_softmax(-1).gather(-1, pref["input_ids"][:, 1:, None])[..., 0] * pref["completion_mask"][:, 1:]
        gradients[f"{name}_per_token_logps"] = per_token.float()
        half = len(per_token) // 2
        out[f"{name}_chosen_logps"] = per_token.sum(1)[:half].tolist()
        out[f"{name}_rejected_logps"] = per_token.sum(1)[half:].tolist()
    for name, kind, settings in cases():
        model = Qwen2ForCausalLM.from_pretrained(HERE / "model" / settings.get("policy", "policy")).double().train()
        reference = Qwen2ForCausalLM.from_pretrained(HERE / "model" / settings.get("reference", "reference")).double().eval()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        trajectory = []
        for step in range(6):
            optimizer.zero_grad()
            loss, metrics = loss_of(kind, settings, model, reference, batches)
            loss.backward()
            norms = {k: p.grad.norm().item() for k, p in model.named_parameters()}
            trajectory.append([loss.item(), sum(n * n for n in norms.values()) ** 0.5])
            if step == 0:
                out["cases"][name] = {"settings": settings, "loss": loss.item(), "grad_norm": trajectory[0][1],
                                      "metrics": metrics}
                if name in COMPLETE:
                    out["cases"][name]["grad_norms"] = norms
                for key, p in model.named_parameters():
                    if name in COMPLETE or key.endswith(SHOWN):
                        gradients[f"{name}/{key}"] = p.grad.float()
            optimizer.step()
        out["cases"][name]["trajectory"] = trajectory
        print(name, trajectory[0])
    for name, batch in batches.items():
        save_file({k: v.contiguous().clone() for k, v in batch.items()}, HERE / f"{name}.safetensors")
    save_file(gradients, HERE / "pref_grads.safetensors")
    for file in HERE.rglob("*.safetensors"):
        file.chmod(0o644)
    (HERE / "pref.json").write_text(json.dumps(out).replace('}, "', '},\n"') + "\n")


if __name__ == "__main__":
    main()
