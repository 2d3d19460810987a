"""The Hugging Face Trainer: CoGD goes in as its optimizer, coupled here are the factors of each head's output."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from cogd import CoGD, couple_named


def examples(count: int) -> list[dict]:
    """Return made-up sentences of which class 1 holds more words from the vocabulary's upper half."""
    words = torch.randint(1, 100, (count, 16))
    return [{"input_ids": ids, "labels": int((ids >= 50).sum() > 8)} for ids in words]


if __name__ == "__main__":
    torch.manual_seed(0)
    config = BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    model = BertForSequenceClassification(config)
    # What attention reads (rows of the values' matrix) is multiplied by columns of the output's: a bilinear pair.
    layer = "bert.encoder.layer.{}.attention.{}.weight"
    pairs = [(layer.format(i, "self.value"), layer.format(i, "output.dense")) for i in range(2)]
    couplings = couple_named(model, pairs, partner_dim=1)
    optimizer = CoGD(torch.optim.AdamW(model.parameters(), lr=1e-3), couplings, rule="descent", period=10)
    trainer = Trainer(
        model,
        TrainingArguments("runs/transformers", num_train_epochs=1, report_to="none", save_strategy="no"),
        train_dataset=examples(256),
        optimizers=(optimizer, None),  # the Trainer makes its own scheduler around it
    )
    trainer.train()
    print(optimizer.last_stats)
