"""Train a BERT-like model: torchrun --nnodes=2 --nproc_per_node=8 torchrun_bert.py --batch-size-per-gpu 32"""

import argparse
import json
import logging
import math
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

logger = logging.getLogger(__name__)

SIZES = {"bert-tiny": (2, 64, 2), "bert-base": (12, 768, 12), "bert-large": (24, 1024, 16)}
VOCABULARY = 1000


def parse_args():
    parser = argparse.ArgumentParser(description="BERT pre-training")
    parser.add_argument("--model", choices=SIZES, default="bert-large")
    parser.add_argument("--batch-size-per-gpu", type=int, default=32)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--num-samples", type=int, default=256)
    parser.add_argument("--num-train-epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup-ratio", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output-dir", required=True)
    return parser.parse_args()


class Bert(nn.Module):
    def __init__(self, layers, hidden, heads, length):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, hidden)
        self.positions = nn.Parameter(torch.zeros(1, length, hidden))
        layer = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.encoder(self.words(tokens) + self.positions))


def main():
    args = parse_args()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    random.seed(args.seed)
    torch.manual_seed(args.seed)

    local_rank = int(os.environ["LOCAL_RANK"])
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    is_main = dist.get_rank() == 0
    if is_main:
        total = args.batch_size_per_gpu * dist.get_world_size() * args.gradient_accumulation_steps
        logger.info("Total train batch size = %d", total)

    tokens = torch.randint(VOCABULARY, (args.num_samples, args.max_seq_length))
    dataset = TensorDataset(tokens)
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch_size_per_gpu, sampler=sampler, drop_last=True)

    model = Bert(*SIZES[args.model], args.max_seq_length).to(device)
    model = DistributedDataParallel(model, device_ids=[local_rank] if has_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    steps_per_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
    num_steps = steps_per_epoch * args.num_train_epochs
    warmup_steps = max(1, int(args.warmup_ratio * num_steps))
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup_steps, max(0.0, (num_steps - step) / num_steps))
    )

    global_step = 0
    for epoch in range(args.num_train_epochs):
        sampler.set_epoch(epoch)
        model.train()
        for number, (batch,) in enumerate(loader):
            batch = batch.to(device)
            masked = torch.rand(batch.shape, device=device) < 0.15
            logits = model(batch.masked_fill(masked, 0))
            loss = nn.functional.cross_entropy(logits[masked], batch[masked]) / args.gradient_accumulation_steps
            loss.backward()
            if (number + 1) % args.gradient_accumulation_steps == 0 or number + 1 == len(loader):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                global_step += 1
        dist.all_reduce(loss.detach())
        if is_main:
            logger.info("epoch %d, step %d, loss %.4f", epoch, global_step, loss.item())

    if is_main:
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(model.module.state_dict(), os.path.join(args.output_dir, "pytorch_model.bin"))
        with open(os.path.join(args.output_dir, "config.json"), "w") as file:
            json.dump(vars(args), file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
