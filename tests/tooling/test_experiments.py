"""The experiments' model, text and training loop, at a size where a run has a few steps."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hlo_surgery as hs
from hlo_surgery.optimizers.adam import AdamState

pytest.importorskip("optax")


@pytest.fixture(scope="module")
def lm():
    from tools.experiments.training import data, logs, loop, methods, model, moments

    return SimpleNamespace(
        data=data, logs=logs, loop=loop, methods=methods, model=model, moments=moments
    )


@pytest.fixture(scope="module")
def text(lm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"def f{i}(x):\n    return x + {i}\n" * 20)
    return lm.data.load(folder, length=8, vocabulary=128)


@pytest.fixture(scope="module")
def tiny(lm):
    """22 steps at a batch of 16."""
    return lm.model.Size("tiny", V=128, L=8, N=1, H=1, c=0.05)


def curve(log):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in log.rows]


@pytest.fixture(scope="module")
def uninterrupted(lm, text, tiny, tmp_path_factory):
    run = lm.methods.Run(tiny, "adam", 5e-2, batch_size=16)
    return run, lm.loop.train(run, text, tmp_path_factory.mktemp("runs"))


def test_it_learns(uninterrupted):
    run, log = uninterrupted
    assert log.finished
    assert len(log.rows) == run.steps
    assert log.rows[-1]["samples"] == 16 * run.steps
    evaluations = log.column("eval_loss")[1]
    assert log.final == evaluations[-1] < 4


def test_the_same_seed_gives_the_same_curve(lm, text, uninterrupted, tmp_path):
    run, log = uninterrupted
    assert curve(lm.loop.train(run, text, tmp_path)) == curve(log)


@pytest.mark.parametrize("where", ["in a step", "between log and checkpoint"])
def test_an_interrupted_run_goes_on(lm, text, uninterrupted, tmp_path, monkeypatch, where):
    run, log = uninterrupted
    seen = []

    def on_step(number, loss):
        seen.append(number)
        if where == "in a step" and number == run.steps - 4:
            raise KeyboardInterrupt

    def save(folder, number, state):
        if where != "in a step" and number == 8:
            raise KeyboardInterrupt
        lm.logs.save(folder, number, state)

    monkeypatch.setattr(lm.loop, "save", save)
    with pytest.raises(KeyboardInterrupt):
        lm.loop.train(run, text, tmp_path, on_step)
    monkeypatch.undo()
    first = len(seen)
    assert 0 < first < run.steps
    ended = lm.loop.train(run, text, tmp_path, lambda number, loss: seen.append(number))
    assert 1 < seen[first] <= first + 1
    assert curve(ended) == curve(log)
    assert curve(lm.logs.read_log(tmp_path / run.name, log.header)) == curve(log)


def test_a_finished_run_is_only_read(lm, text, uninterrupted, tmp_path, monkeypatch):
    run, log = uninterrupted
    lm.logs.write_log(tmp_path / run.name, log)
    lm.logs.save(tmp_path / run.name, run.steps, lm.loop.start(run))
    monkeypatch.setattr(hs, "train_step", None)
    assert curve(lm.loop.train(run, text, tmp_path)) == curve(log)


def test_another_text_is_another_run(lm, text, uninterrupted, tmp_path):
    run, log = uninterrupted
    lm.logs.write_log(tmp_path / run.name, log)
    other = replace(text, train=text.train[1:])
    with pytest.raises(ValueError, match="of another run"):
        lm.loop.train(run, other, tmp_path)


def test_a_run_that_diverges_ends(lm, text, tiny, tmp_path):
    run = lm.methods.Run(tiny, "sign_sgd", 1e30, batch_size=16)
    log = lm.loop.train(run, text, tmp_path)
    assert log.diverged
    assert log.final == float("inf")
    assert len(log.rows) < run.steps
    assert len(lm.loop.train(run, text, tmp_path).rows) == len(log.rows)


def test_the_second_moment_in_training_is_vmaps(lm, text, tiny):
    """The average that MicroAdam divides by, after each of its steps, in float64 from `vmap`."""
    run = lm.methods.Run(tiny, "micro_adam", 1e-2, batch_size=4)
    params, state = jax.device_put(lm.loop.start(run), jax.devices()[0])
    step = hs.train_step(lm.model.loss, run.optimizer())
    per_example = jax.jit(
        jax.vmap(lambda p, x: jax.grad(lm.model.loss)(p, x[None]), in_axes=(None, 0))
    )
    average = jax.tree.map(lambda p: np.zeros(p.shape), params)
    for number in range(8):
        batch = text.batch(number, run.batch_size, run.seed)
        squares = jax.tree.map(
            lambda g: np.mean(np.square(np.float64(g)), 0), per_example(params, batch)
        )
        average = jax.tree.map(lambda v, s: 0.95 * v + 0.05 * s, average, squares)
        params, state, _ = step(params, state, batch)
        (adam,) = [s for s in jax.tree.leaves(state, is_leaf=is_adam) if is_adam(s)]
        for got, want in zip(
            jax.tree.leaves(adam.v.average), jax.tree.leaves(average), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * want.max())


def is_adam(x):
    return isinstance(x, AdamState)


def test_moments_are_logged(lm, tiny):
    """After one step the averages are of its gradients, so the estimates are numpy's."""
    optimizer = lm.methods.Run(tiny, "adam", 1e-2, batch_size=16, tracks_moments=True).optimizer()
    gradients = {"w": np.random.default_rng(0).normal(1, 2, (4, 30)).astype(np.float32)}
    mean, squares = (jax.tree.map(lambda g, k=k: (g**k).mean(0), gradients) for k in (1, 2))
    _, state = optimizer.update(mean, optimizer.init(mean), mean, second_moment=squares)
    row = lm.moments.logged(state, 4)
    sigma2 = gradients["w"].var(0, ddof=1)
    mu2 = mean["w"] ** 2 - sigma2 / 4
    np.testing.assert_allclose(
        [row["mean_squared_mean"], row["variance_mean"]], [mu2.mean(), sigma2.mean()], rtol=1e-4
    )
    np.testing.assert_allclose(row["ratio_of_means"], 4 * mu2.mean() / sigma2.mean(), rtol=1e-4)
    np.testing.assert_allclose(row["ratio"]["['w']"], np.median(4 * mu2 / sigma2), rtol=1e-4)
    assert json.loads(json.dumps(row)) == row


def test_the_papers_size(lm):
    """151 million parameters in the backbone, and K = floor(20 P / T) with T = 2048 * 64 tokens a
    batch.
    """
    paper = lm.model.SIZES["paper"]
    assert (paper.D, paper.F) == (1024, 4096)
    assert paper.backbone == 150_994_944
    assert paper.P == 150_994_944 + 32_101 * 1024
    assert paper.steps(64) == 28_055


@pytest.mark.parametrize("name", ["small", "paper"])
def test_parameters_are_as_many_as_counted(lm, name):
    size = lm.model.SIZES[name]
    params = jax.eval_shape(lambda: lm.model.init(size, 0))
    norms = (2 * size.N + 1) * size.D
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert total == size.P + size.D * size.V + size.L * size.D + norms


def test_the_loss_is_causal_and_of_an_even_guess(lm, tiny):
    params = lm.model.init(tiny, 0)
    tokens = jnp.arange(8)[None]
    changed = tokens.at[0, 5].set(99)
    logits, others = (lm.model.logits(params, x) for x in (tokens, changed))
    np.testing.assert_array_equal(logits[:, :5], others[:, :5])
    assert (logits[:, 5:] != others[:, 5:]).any(-1).all()
    even = lm.model.loss(params | {"head": jnp.zeros((64, 128))}, jnp.arange(9)[None])
    np.testing.assert_allclose(even, np.log(128), rtol=1e-6)


@pytest.mark.parametrize(
    "files", [{}, {"notes.md": "text"}, {"a.txt": "short"}, {"a.txt": "long enough" * 9}]
)
def test_too_little_text_is_refused(lm, tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"holds no .txt, .jsonl, .npy|too little text"):
        lm.data.load(tmp_path, length=8, vocabulary=256)


def test_files_of_every_kind(lm, tmp_path):
    """In the order of their names; every 20th document, so the first, is held out."""
    np.save(tmp_path / "a.npy", np.arange(300, 320))
    (tmp_path / "b.txt").write_bytes(bytes(range(1, 9)))
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"text": "é"}) + "\n\n" + json.dumps({"text": "abcdef"}) + "\n"
    )
    text = lm.data.load(tmp_path, length=4, vocabulary=320)
    np.testing.assert_array_equal(text.held_out[0], np.arange(300, 305))
    np.testing.assert_array_equal(text.train[:2], [[1, 2, 3, 4, 5], [5, 6, 7, 8, 0]])
    assert bytes(text.train[2:].ravel().tolist()) == b"\0\xc3\xa9\0a" + b"abcde"
    with pytest.raises(ValueError, match="token 319, and the vocabulary 256"):
        lm.data.load(tmp_path, length=4, vocabulary=256)


def test_samples_are_the_same_at_any_batch_size(text):
    by_four = np.concatenate([text.batch(step, 4, seed=3) for step in range(4)])
    np.testing.assert_array_equal(by_four, text.batch(0, 16, seed=3))
    epoch = text.batch(0, len(text.train), seed=3)
    np.testing.assert_array_equal(np.unique(epoch, axis=0), np.unique(text.train, axis=0))
    assert (text.batch(1, len(text.train), seed=3) != epoch).any()


def test_the_pinned_text_is_one_and_enough_for_a_small_run(lm):
    size = lm.model.SIZES["small"]
    text = lm.data.load(None, size.L, size.V)
    assert text.digest == "0de73509"
    assert len(text.train) >= size.steps(16) * 16
    assert text.held_out.shape == (lm.data.EVALUATED, size.L + 1)
