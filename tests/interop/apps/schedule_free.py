"""A schedule-free optimizer, which keeps an average of the parameters."""
import schedulefree
import torch
from report import STEPS, Points, network, report, start
from torch.utils.data import DataLoader

start()
model = network()
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-2)
optimizer.train()
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
