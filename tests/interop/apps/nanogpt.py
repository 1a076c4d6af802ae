"""The loop of nanoGPT: batches are random crops, and the next one is drawn behind the forward."""
import torch
from report import STEPS, report, start
from torch import nn

BLOCK, VOCABULARY = 16, 32


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, 32), nn.Embedding(BLOCK, 32)
        self.h = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", True, norm_first=True)
        self.lm_head = nn.Linear(32, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK)
        x = self.h(self.wte(tokens) + self.wpe(torch.arange(BLOCK)), mask, is_causal=True)
        return nn.functional.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())


start()
data = torch.randint(0, VOCABULARY, (4096,), generator=torch.Generator().manual_seed(5))


def get_batch():
    ix = torch.randint(len(data) - BLOCK - 1, (8,))
    crops = torch.stack([data[i : i + BLOCK + 1] for i in ix])
    return crops[:, :-1], crops[:, 1:]


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
X, Y = get_batch()
for _ in range(STEPS):
    loss = model(X, Y)
    X, Y = get_batch()
    loss.backward()
    report(model, loss)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
