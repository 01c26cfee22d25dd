"""The two stages. Each function adds the gradients of one micro-batch and returns its loss.

Transfer: layer by layer. Each layer gets the teacher's hidden states, and its new attention learns
to add what the softmax attention added. No gradient crosses a layer, so all layers learn from the
first step on, at a third of the cost of a backward pass through the model.

Distillation: end to end. The student runs on its own hidden states and learns the teacher's
distribution of the next token. Errors that the layers' attentions leave no longer add up.
"""

import torch
import torch.nn.functional as F

from compiled import fused

HEAD_ROWS = 64  # logits at a time: a whole micro-batch of them would take gigabytes
GPU_HEAD_ROWS = 4096


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
def divergence(student_logits, teacher_logits):
    """(sum over rows of KL(teacher || student), its gradient at the student's logits)."""
    log_q, log_p = (each.float().log_softmax(-1) for each in (student_logits, teacher_logits))
    p = log_p.exp()
    return ((log_p - log_q) * p).sum(), (log_q.exp() - p).to(student_logits.dtype)


class Divergence(torch.autograd.Function):
    """Mean KL(teacher || student) over the positions of two [positions, n_embd] hidden states.

    The whole vocabulary counts, without its logits ever being in memory: the forward pass also
    computes the gradient, a few rows of logits at a time. The output projections are frozen.
    """

    @staticmethod
    def forward(ctx, student_hidden, teacher_hidden, student_head, teacher_head):
        grad = torch.empty_like(student_hidden)
        rows = GPU_HEAD_ROWS if grad.is_cuda else HEAD_ROWS
        total = grad.new_zeros(())
        for part, mine, theirs in zip(grad.split(rows), student_hidden.split(rows),
                                      teacher_hidden.split(rows)):
            loss, change = divergence(F.linear(mine.to(student_head.dtype), student_head),
                                      F.linear(theirs.to(teacher_head.dtype), teacher_head))
            total += loss
            part.copy_(change @ student_head)
        ctx.save_for_backward(grad / len(grad))
        return total / len(grad)

    @staticmethod
    def backward(ctx, grad_out):
        grad, = ctx.saved_tensors
        return grad * grad_out, None, None, None


def within_reach(teacher, tokens):
    """The teacher's hidden states of tokens [batch, length], also of rows longer than its own.

    A softmax model breaks beyond the positions it was trained at. There it reads windows that
    overlap by half; a state then comes from a window that holds at least half of its reach before.
    """
    reach = teacher.shape.positions
    if tokens.shape[1] <= reach:
        return teacher.hidden(tokens)
    if (tokens.shape[1] - reach) % (reach // 2):
        raise ValueError(f'rows of {tokens.shape[1]} tokens are no whole number of windows of '
                         f'{reach} that overlap by half')
    windows = tokens.unfold(1, reach, reach // 2)
    hidden = teacher.hidden(windows.flatten(0, 1)).unflatten(0, windows.shape[:2])
    return torch.cat((hidden[:, 0], hidden[:, 1:, reach // 2 :].flatten(1, 2)), 1)


def distil(teacher, student, tokens, scale=1.0):
    """Mean KL to the teacher's next-token distributions, nats. Trains whatever requires_grad."""
    with torch.no_grad():
        theirs = within_reach(teacher, tokens).flatten(0, 1)
    mine = student.hidden(tokens).flatten(0, 1)
    loss = Divergence.apply(mine, theirs, student.head(), teacher.head())
    (loss * scale).backward()
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
