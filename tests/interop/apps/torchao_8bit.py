"""An optimizer of torchao with moments of 8 bits."""
import torch
from report import STEPS, Points, network, report, start
from torch.utils.data import DataLoader
from torchao.optim import AdamW8bit

start()
model = network(512)
optimizer = AdamW8bit(model.parameters(), lr=1e-2)
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
