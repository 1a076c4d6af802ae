"""An ordinary loop: AMP with autocast, a DataLoader with workers, gradients clipped."""
import torch
from report import STEPS, Points, network, report, start
from torch.utils.data import DataLoader

if __name__ == "__main__":
    start()
    model, done = network(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(Points(), batch_size=8, shuffle=True, num_workers=2)
    while done < STEPS:
        for x, y in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            done = report(model, loss)
            optimizer.step()
            optimizer.zero_grad()
            if done == STEPS:
                break
