"""A small vision transformer of timm, with its own optimizer and average of the weights."""
import timm
import timm.optim
import timm.utils
import torch
from report import STEPS, Points, report, start
from torch.utils.data import DataLoader

start()
model = timm.create_model(
    "vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2, num_classes=4, drop_rate=0.1
)
average = timm.utils.ModelEmaV3(model, decay=0.9)
optimizer = timm.optim.create_optimizer_v2(model, opt="lamb", lr=1e-3)
loader, done = DataLoader(Points(), batch_size=8, shuffle=True), 0
while done < STEPS:
    for x, y in loader:
        pictures = x.repeat(1, 3 * 32 * 2).reshape(-1, 3, 32, 32)
        loss = torch.nn.functional.cross_entropy(model(pictures), y.reshape(-1).long() % 4)
        loss.backward()
        done = report(model, loss)
        optimizer.step()
        optimizer.zero_grad()
        average.update(model)
        if done == STEPS:
            break
