"""The trainer of test_torch_more.py for Hugging Face's Trainer: a small GPT-2, randomly
initialised, on the bytes of this project's licence.

    hf_trainer.py FOLDER STEPS

Prints `step N LOSS` (hexadecimal) for each update, and `state SHA256` of parameters and moments at
the end. A callback attaches Cairn when the Trainer has built everything; from then on the data are
those of the resumed step.
"""
import hashlib
import os
import pathlib
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import cairn

BATCH, WORDS = 4, 48
STEPS = int(sys.argv[2])
PAUSE_S = float(os.environ.get("TRAINER_PAUSE_S", "0"))


class Text(Dataset):
    """Consecutive pieces of the text, from the batch of step `first` on."""

    def __init__(self):
        self.bytes = torch.tensor(
            list((pathlib.Path(__file__).resolve().parents[2] / "LICENSE").read_bytes())
        )
        self.first = 0

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        start = WORDS * (BATCH * self.first + index) % (len(self.bytes) - WORDS)
        return {
            "input_ids": self.bytes[start : start + WORDS],
            "labels": self.bytes[start : start + WORDS],
        }


class Attached(TrainerCallback):
    def __init__(self, data):
        self.data, self.step, self.loss = data, 0, None

    def on_train_begin(
        self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **_others
    ):
        self.step = self.data.first = cairn.attach(model, optimizer, scheduler=lr_scheduler).step

    def on_step_end(self, args, state, control, **_others):
        print(f"step {self.step} {self.loss.item().hex()}", flush=True)
        self.step += 1
        control.should_training_stop = self.step >= STEPS


class Printing(Trainer):
    def get_train_dataloader(self):
        # A generator of its own: it draws nothing from the common one.
        return DataLoader(self.train_dataset, BATCH, generator=torch.Generator())

    def training_step(self, *arguments, **options):
        if str(attached.step) == os.environ.get("TRAINER_HOLD_AT"):
            time.sleep(3600)  # until the test kills it, however late that looks
        loss = super().training_step(*arguments, **options)
        attached.loss = loss.detach()
        time.sleep(PAUSE_S)
        return loss


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=WORDS,
            n_embd=32,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    settings = TrainingArguments(
        output_dir=sys.argv[1],
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=3e-3,
        warmup_steps=3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=3,
    )
    trainer = Printing(
        model=model, args=settings, train_dataset=attached.data, callbacks=[attached]
    )
    trainer.train()
    sha = hashlib.sha256()
    for parameter in model.parameters():
        for tensor in (
            parameter,
            *(value for _, value in sorted(trainer.optimizer.state[parameter].items())),
        ):
            sha.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print(f"state {sha.hexdigest()}", flush=True)


attached = Attached(Text())
main()
