"""LoRA by peft: few parameters are trained beside many frozen parameters."""
import torch
from peft import LoraConfig, get_peft_model
from report import STEPS, Points, network, report, start
from torch.utils.data import DataLoader

start()
model = get_peft_model(network(), LoraConfig(r=4, target_modules=["0", "3"], lora_dropout=0.1))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
loader, done = DataLoader(Points(), batch_size=8, shuffle=True), 0
while done < STEPS:
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        done = report(model, loss)
        optimizer.step()
        optimizer.zero_grad()
        if done == STEPS:
            break
