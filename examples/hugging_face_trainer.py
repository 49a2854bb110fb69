"""Hugging Face Trainer with perturbed embeddings.

Words cannot be perturbed slightly, but their embeddings can. The model is a tiny transformer with random
weights, and the sentences are synthetic: nothing is downloaded. The label of a sentence is 1 if it has more
good words than bad ones. Padding is masked, and its embeddings are not perturbed.

python examples/hugging_face_trainer.py
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from phiball import Ball, RobustLoss, pgm, pointwise_loss

torch.set_num_threads(1)
WORDS, LENGTH = 40, 12  # words 1 to 10 are good, 11 to 20 bad, 0 is padding
RADIUS = 0.1


def sentences(n, seed):
    """Return n sentences of different lengths, with labels."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, WORDS, (n, LENGTH), generator=generator)
    lengths = torch.randint(5, LENGTH + 1, (n, 1), generator=generator)
    mask = torch.arange(LENGTH) < lengths
    words = words * mask
    good, bad = ((words > 0) & (words <= 10)).sum(1), ((words > 10) & (words <= 20)).sum(1)
    rows = zip(words, mask.long(), (good > bad).long(), strict=True)
    return [{"input_ids": w, "attention_mask": m, "labels": label} for w, m, label in rows]


def scorer(model, mask):
    """Return the model as a function from embeddings (sentences, words, features) to logits."""
    return lambda z: model(inputs_embeds=z, attention_mask=mask).logits


class RobustTrainer(Trainer):
    """A Trainer that makes the model robust to perturbed embeddings."""

    robust = RobustLoss(RADIUS, rng=0)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        """Return the robust loss instead of the Trainer's own."""
        mask = inputs["attention_mask"]
        embeddings = model.get_input_embeddings()(inputs["input_ids"])
        return self.robust(scorer(model, mask), embeddings, inputs["labels"], mask=mask[:, :, None])


def errors(model, data):
    """Return the errors, clean and with attacked embeddings, in %."""
    model.eval()
    batch = {name: torch.stack([row[name] for row in data]) for name in data[0]}
    mask, labels = batch["attention_mask"], batch["labels"]
    z = model.get_input_embeddings()(batch["input_ids"]).detach()
    scores = scorer(model, mask)
    ball = Ball(2, RADIUS).masked(mask[:, :, None])
    attacked = pgm(pointwise_loss(scores, labels), z, ball, steps=5, rng=0)
    with torch.no_grad():
        predicted = [scores(a).argmax(-1) for a in (z, attacked)]
    return [100 * float((p != labels).float().mean()) for p in predicted]


torch.manual_seed(0)
config = BertConfig(
    vocab_size=WORDS,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
    pad_token_id=0,
)
model = BertForSequenceClassification(config)
with tempfile.TemporaryDirectory() as folder:
    for kind in (Trainer, RobustTrainer):  # standard training, then robust training of the same model
        arguments = TrainingArguments(
            folder,
            num_train_epochs=5,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        kind(model=model, args=arguments, train_dataset=sentences(960, 0)).train()
        clean, attacked = errors(model, sentences(300, 1))
        print(f"{kind.__name__:13} error {clean:2.0f} %, under attack {attacked:2.0f} %")
