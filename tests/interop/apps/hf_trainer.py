"""Hugging Face's Trainer."""
import tempfile

import torch
from report import STEPS, Points, network, report, start
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x, labels):
        out = self.net(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}


class Reporting(Trainer):
    def compute_loss(self, model, inputs, **options):
        loss = super().compute_loss(model, inputs, **options)
        report(model, loss.detach())
        return loss


def collate(rows):
    return {"x": torch.stack([r[0] for r in rows]), "labels": torch.stack([r[1] for r in rows])}


start()
arguments = TrainingArguments(
    tempfile.mkdtemp(),
    max_steps=STEPS,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
)
Reporting(Model(), arguments, train_dataset=Points(), data_collator=collate).train()
