"""The two stages. Each function adds the gradients of one micro-batch and returns its loss.

Transfer: layer by layer. Each layer gets the teacher's hidden states, and its new attention learns
to add what the softmax attention added. No gradient crosses a layer, so all layers learn from the
first step on, at a third of the cost of a backward pass through the model.

Distillation: end to end. The student runs on its own hidden states and learns the teacher's
distribution of the next token. Errors that the layers' attentions leave no longer add up. Answers
about a row's own text are learned from the text: a few tokens of thousands, which no mean over
positions sees, and the teacher may not have read that far back.
"""

import torch
import torch.nn.functional as F

from compiled import fused

HEAD_ROWS = 64  # logits at a time: a whole micro-batch of them would take gigabytes
GPU_HEAD_ROWS = 4096
ANSWERS = 0.2  # weight of the mean loss on answers beside the mean KL


def transfer(teacher, student, tokens, scale=1.0):
    """Mean relative squared error of the layers' attention outputs. Trains W_q, W_k (and ln_1)."""
    total = 0.0
    with torch.no_grad():
        x = teacher.embed(tokens)
    for layer in range(teacher.shape.layers):
        with torch.no_grad():
            y = teacher.norm(x, f'h.{layer}.ln_1')
            q, k, v = (teacher.project(y, layer, part) for part in 'qkv')
            target = teacher.linear(teacher.attend(q, k, v, layer), f'h.{layer}.attn.c_proj')
        out = student.attend(student.project(y, layer, 'q'), student.project(y, layer, 'k'), v,
                             layer)
        target, out = target.float(), teacher.linear(out, f'h.{layer}.attn.c_proj').float()
        loss = (out - target).square().mean() / target.square().mean()
        (loss * scale).backward()
        total += float(loss.detach()) / teacher.shape.layers
        with torch.no_grad():
            x = teacher.after_attention(x, target, layer)
    return total


@fused
def divergence(student_logits, teacher_logits, targets, weights):
    """(weighted sum of rows' losses, its gradient at the student's logits).

    A row's loss is KL(teacher || student), or the cross-entropy of its target where that is not -1.
    """
    log_q, log_p = (each.float().log_softmax(-1) for each in (student_logits, teacher_logits))
    p, is_known = log_p.exp(), (targets >= 0)[:, None]
    chosen = torch.arange(log_q.shape[-1], device=log_q.device) == targets[:, None]
    p = torch.where(is_known, chosen.float(), p)
    entropy = torch.where(is_known, torch.zeros_like(log_p), log_p)
    loss = ((entropy - log_q) * p).sum(-1) * weights
    change = (log_q.exp() - p) * weights[:, None]
    return loss.sum(), change.to(student_logits.dtype)


class Divergence(torch.autograd.Function):
    """Sum of the losses of divergence() over the positions of two [positions, n_embd] states.

    targets, weights: [positions]. The whole vocabulary counts, without its logits ever being in
    memory: the forward pass also computes the gradient, a few rows of logits at a time. The output
    projections are frozen.
    """

    @staticmethod
    def forward(ctx, student_hidden, teacher_hidden, student_head, teacher_head, targets, weights):
        grad = torch.empty_like(student_hidden)
        rows = GPU_HEAD_ROWS if grad.is_cuda else HEAD_ROWS
        total = grad.new_zeros(())
        for part, mine, theirs, *rule in zip(*(each.split(rows) for each in (
                grad, student_hidden, teacher_hidden, targets, weights))):
            loss, change = divergence(F.linear(mine.to(student_head.dtype), student_head),
                                      F.linear(theirs.to(teacher_head.dtype), teacher_head), *rule)
            total += loss
            part.copy_(change @ student_head)
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx, grad_out):
        grad, = ctx.saved_tensors
        return grad * grad_out, None, None, None, None, None


def check_length(length, reach):
    """Errors: ValueError where a teacher of that reach cannot read rows of so many tokens."""
    if length > reach and (length - reach) % (reach // 2):
        raise ValueError(f'rows of {length} tokens are no whole number of windows of {reach} that '
                         'overlap by half')


def within_reach(teacher, tokens):
    """The teacher's hidden states of tokens [batch, length], also of rows longer than its own.

    A softmax model breaks beyond the positions it was trained at. There it reads windows that
    overlap by half; a state then comes from a window that holds at least half of its reach before.
    """
    reach = teacher.shape.positions
    check_length(tokens.shape[1], reach)
    if tokens.shape[1] <= reach:
        return teacher.hidden(tokens)
    windows = tokens.unfold(1, reach, reach // 2)
    hidden = teacher.hidden(windows.flatten(0, 1)).unflatten(0, windows.shape[:2])
    return torch.cat((hidden[:, 0], hidden[:, 1:, reach // 2 :].flatten(1, 2)), 1)


def counts_of(answers):
    """(positions whose next token belongs to an answer, others) of [rows, length]."""
    num_known = int(answers[:, 1:].sum())
    return num_known, answers.numel() - num_known


def rule_of(tokens, answers, counts=None):
    """(targets, weights) of divergence() for each position of [rows, length], flat.

    A position whose next token belongs to an answer has that target, and all of these together have
    the weight ANSWERS. The others learn from the teacher, with 1 together.

    counts: counts_of() the whole step, where these are some of its rows.
    """
    is_known = torch.zeros_like(answers)
    is_known[:, :-1] = answers[:, 1:]
    num_known, num_others = counts or counts_of(answers)
    targets = torch.where(is_known, tokens.roll(-1, 1), -torch.ones_like(tokens)).flatten()
    weights = torch.where(is_known, ANSWERS / max(1, num_known), 1 / max(1, num_others))
    return targets, weights.float().flatten()


def distil(teacher, student, tokens, answers, counts=None):
    """Mean KL to the teacher's next-token distributions + ANSWERS x mean loss on answers, nats.

    answers: bool, as tokens, [rows, length]. counts: of rule_of(): the losses of a step's parts add
    up. Trains whatever requires_grad.
    """
    with torch.no_grad():
        theirs = within_reach(teacher, tokens).flatten(0, 1)
    mine = student.hidden(tokens).flatten(0, 1)
    loss = Divergence.apply(mine, theirs, student.head(), teacher.head(),
                            *rule_of(tokens, answers, counts))
    loss.backward()
    return float(loss.detach())


@torch.no_grad()
def next_token_loss(decoder, tokens):
    """Mean cross-entropy of rows [batch, length + 1], nats a token."""
    hidden = decoder.hidden(tokens[:, :-1]).flatten(0, 1)
    total, head = 0.0, decoder.head()
    for part, targets in zip(hidden.split(HEAD_ROWS), tokens[:, 1:].flatten().split(HEAD_ROWS)):
        logits = F.linear(part.to(head.dtype), head).float()
        total += float(F.cross_entropy(logits, targets, reduction='sum'))
    return total / len(hidden)
