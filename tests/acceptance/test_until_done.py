"""Loops until every example is done: what one is does not depend on how long the others go on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hlo_surgery as hs

KEYS = jax.random.split(jax.random.key(0), 5)
PARAMS = {
    "a": jax.random.normal(KEYS[0], (7, 5)),
    "r": jax.random.normal(KEYS[1], (5, 5)),
    "c": jax.random.normal(KEYS[2], (5, 4)),
}
X, Y = 3 * jax.random.normal(KEYS[3], (6, 7)), jax.random.normal(KEYS[4], (6, 4))


def layer(w, x, z):
    return jnp.tanh(0.3 * z @ w + x)


def iterate(update, start):
    def going(state):
        return (state[1] > 1e-6) & (state[2] < 50)

    def step(state):
        new = update(state[0])
        return new, jnp.max(jnp.abs(new - state[0])), state[2] + 1

    return lax.while_loop(going, step, (start, 1.0, 0))[0]


@jax.custom_vjp
def fixed_point(w, x):
    return iterate(lambda z: layer(w, x, z), jnp.zeros_like(x))


def forward(w, x):
    z = fixed_point(w, x)
    return z, (w, x, z)


def backward(saved, cotangent):
    _, vjp = jax.vjp(layer, *saved)
    return vjp(iterate(lambda u: cotangent + vjp(u)[2], cotangent))[:2]


fixed_point.defvjp(forward, backward)


def equilibrium(p, x, y):
    z = jax.vmap(fixed_point, (None, 0))(p["r"], x @ p["a"])
    return jnp.mean(jnp.sum((z @ p["c"] - y) ** 2, -1))


def halved(x):
    """The example halved until it is small, and how often that took."""
    return lax.while_loop(
        lambda s: jnp.sum(s[0] ** 2) > 1, lambda s: (s[0] / 2, s[1] + 1), (x, 0.0)
    )


def counted(p, x, y):
    small, times = jax.vmap(halved)(x)
    return jnp.mean(
        jnp.sum((jnp.tanh(small @ p["a"] @ p["r"]) * times[:, None] @ p["c"] - y) ** 2, -1)
    )


def element_by_element(p, x, y):
    """Every element of every example has a loop of its own, as a sampler by rejection has."""
    once = jax.vmap(
        lambda a: lax.while_loop(lambda s: s[0] ** 2 > 1, lambda s: (s[0] / 2, s[1] + 1), (a, 0.0))
    )
    small, times = jax.vmap(once)(x)
    return jnp.mean(
        jnp.sum((jnp.tanh(small @ p["a"] @ p["r"]) @ p["c"] * times.sum(-1)[:, None] - y) ** 2, -1)
    )


@pytest.mark.first(1)
@pytest.mark.parametrize("loss", [equilibrium, counted, element_by_element])
def test_second_moment(loss):
    examples = jax.vmap(jax.grad(loss), (None, 0, 0))(PARAMS, X[:, None], Y[:, None])
    gradient, squares = hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())(
        PARAMS, X, Y
    )
    for name, g in examples.items():
        np.testing.assert_allclose(gradient[name], g.mean(0), atol=1e-5 * float(jnp.abs(g).max()))
        np.testing.assert_allclose(squares[name], (g**2).mean(0), atol=1e-5 * float((g**2).max()))


def together(w, x):
    """All examples go on until the last is done: each depends on the slowest."""
    return lax.while_loop(
        lambda s: jnp.any(jnp.sum(s[0] ** 2, -1) > 1),
        lambda s: (0.5 * jnp.tanh(s[0] @ w), s[1] + 1.0),
        (x, 0.0),
    )


@jax.custom_jvp
def slowest(w, x):
    return together(w, x)[0]


slowest.defjvp(
    lambda primals, tangents: (slowest(*primals), slowest(*primals) * jnp.sum(tangents[0]))
)


def test_unfrozen_examples_are_refused():
    def loss(p, x, y):
        return jnp.mean(jnp.sum((slowest(p["r"], x @ p["a"]) @ p["c"] - y) ** 2, -1))

    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())(PARAMS, X, Y)


def until_the_first_is_done(w, x):
    """Each example keeps its carry once it is done, but none goes on after the first is."""

    def going(h):
        return jnp.sum(h**2, -1) > 1

    return lax.while_loop(
        lambda h: jnp.all(going(h)), lambda h: jnp.where(going(h)[:, None], 0.5 * h, h), x @ w
    )


def test_a_loop_until_the_first_example_is_done_is_refused():
    def loss(p, x, y):
        h = lax.stop_gradient(until_the_first_is_done(p["r"], x @ p["a"]))
        return jnp.mean(jnp.sum((h @ p["c"] - y) ** 2, -1))

    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        hs.grad(loss, batch_argnums=(1, 2), statistics=hs.second_moment())(PARAMS, X, Y)


def flagged(w, x, first, next):
    """As Equinox's loops are under `vmap`: a flag says whether an example goes on."""

    def going(h):
        return h[:, 0] ** 2 > 0.1

    def step(state):
        flag, h = state
        new = 0.5 * h
        return flag & going(next(h, new)), jnp.where(flag[:, None], new, h)

    h = x @ w
    return lax.while_loop(lambda s: jnp.any(going(s[1])), step, (first(going(h)), h))[1]


def through_flags(first, next):
    def loss(p, x, y):
        h = lax.stop_gradient(flagged(p["a"], x, first, next))
        return jnp.mean(jnp.sum((h @ p["c"] - y) ** 2, -1))

    return loss


def test_a_flag_that_is_what_is_asked_freezes_examples():
    test_second_moment(through_flags(lambda g: g, lambda h, new: new))


@pytest.mark.parametrize(
    ("first", "next"),
    [
        pytest.param(lambda g: jnp.ones_like(g), lambda h, new: new, id="true at first"),
        pytest.param(lambda g: g, lambda h, new: h, id="a step late"),
        pytest.param(lambda g: g, lambda h, new: 2 * new, id="of something else"),
    ],
)
def test_a_flag_that_may_stay_true_is_refused(first, next):
    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        hs.grad(through_flags(first, next), batch_argnums=(1, 2), statistics=hs.norms())(
            PARAMS, X, Y
        )


def test_a_flag_of_each_element_is_refused():
    """What is asked of one element rests on another, which its own flag has kept back."""

    def asked(h):
        return jnp.stack([h[:, 0] + h[:, 1] > 1.0, h[:, 1] < 0.5], -1)

    def step(state):
        flag, h = state
        new = h * jnp.array([0.9, 1.0]) + jnp.array([0.0, 0.3])
        return flag & asked(new), jnp.where(flag, new, h)

    def loss(w, x):
        h = lax.while_loop(lambda s: jnp.any(asked(s[1])), step, (asked(w * x), w * x))[1]
        return jnp.mean(w * lax.stop_gradient(h)[:, 0])

    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        hs.grad(loss, statistics=hs.norms())(1.0, jnp.array([[1.1, 0.3], [9.0, 0.1]]))


HALVED = """
func.func @main(%w: tensor<f32>, %x: tensor<4xf32>) -> (tensor<f32> {{jax.result_info = "g"}}) {{
  %one = stablehlo.constant dense<1.0> : tensor<4xf32>
  %half = stablehlo.constant dense<0.5> : tensor<4xf32>
  %f = stablehlo.constant dense<{initial}> : tensor<i1>
  %wb = stablehlo.broadcast_in_dim %w, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %h0 = stablehlo.multiply %x, %wb : tensor<4xf32>
  %r = stablehlo.while(%h = %h0) : tensor<4xf32>
   cond {{ %q = stablehlo.compare GT, %h, %one : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
          %any = stablehlo.reduce(%q init: %f) across dimensions = [0] :
            (tensor<4xi1>, tensor<i1>) -> tensor<i1>
            reducer(%a: tensor<i1>, %b: tensor<i1>) {{ {combined}
              stablehlo.return %o : tensor<i1> }}
          stablehlo.return %any : tensor<i1> }}
   do {{   %q = stablehlo.compare GT, %h, %one : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
          %u = stablehlo.multiply %h, %half : tensor<4xf32>
          {predicate}
          %n = stablehlo.select %p, %u, %h : tensor<4xi1>, tensor<4xf32>
          stablehlo.return %n : tensor<4xf32> }}
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.reduce(%r init: %zero) applies stablehlo.add across dimensions = [0] :
    (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  return %t : tensor<f32>
}}"""
ANY = "%o = stablehlo.or %a, %b : tensor<i1>"
GOING = "%p = stablehlo.compare GT, %h, %one : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>"


def rewritten(combined=ANY, predicate=GOING, initial="false"):
    """The module that returns each example's term, too. Where it is refused, it is not run: it may
    never end.
    """
    text = HALVED.format(combined=combined, predicate=predicate, initial=initial)
    asked = {"batch": [1], "gradients": [0], "loss_reduction": "sum"}
    return hs.modules.rewrite_module(text, statistics=hs.per_example(), **asked)


NO_ANY = {
    "the later value": "%o = stablehlo.or %b, %b : tensor<i1>",
    "the earlier value": "%o = stablehlo.or %a, %a : tensor<i1>",
    "not the earlier": "%m = stablehlo.not %a : tensor<i1>\n%o = stablehlo.or %m, %b : tensor<i1>",
    "absorbed": "%m = stablehlo.and %a, %b : tensor<i1>\n%o = stablehlo.or %a, %m : tensor<i1>",
    "all": "%o = stablehlo.and %a, %b : tensor<i1>",
    "odd": "%o = stablehlo.xor %a, %b : tensor<i1>",
    "another truth": "%m = stablehlo.constant dense<false> : tensor<i1>\n"
    "%o = stablehlo.or %b, %m : tensor<i1>",
}


@pytest.mark.parametrize("combined", NO_ANY.values(), ids=NO_ANY.keys())
def test_a_reduction_that_is_no_or_of_both_is_refused(combined):
    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        rewritten(combined)


def test_an_or_that_starts_from_true_is_refused():
    """That loop never ends."""
    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        rewritten(initial="true")


def through(*steps):
    """A predicate behind these ops, each with its element type; converted where that changes."""
    lines, value, kind = [], "%q", "i1"
    for i, (name, to) in enumerate([*steps, ("convert", "i1")]):
        result = "%p" if i == len(steps) else f"%s{i}"
        types = f"(tensor<4x{kind}>) -> tensor<4x{to}>" if name == "convert" else f"tensor<4x{to}>"
        lines.append(f"{result} = stablehlo.{name} {value} : {types}")
        value, kind = result, to
    return "\n".join(lines)


NOT = ("not", "i1")
INTEGER, BYTE = ("convert", "i32"), ("convert", "ui8")
CHANGED = {
    "the integer's complement": through(NOT, INTEGER, ("not", "i32")),
    "and of none": through(INTEGER, ("not", "i32")),
    "twice": through(INTEGER, ("not", "i32"), ("not", "i32")),
    "of 8 bits": through(NOT, BYTE, ("not", "ui8")),
    "a negative": through(NOT, INTEGER, ("negate", "i32"), ("not", "i32")),
    "in a float without zero": through(("convert", "f8E8M0FNU")),
    "an or with two": f"{through(INTEGER).rsplit(chr(10), 1)[0]}\n"
    "%two = stablehlo.constant dense<2> : tensor<4xi32>\n"
    "%both = stablehlo.or %s0, %two : tensor<4xi32>\n"
    "%p = stablehlo.convert %both : (tensor<4xi32>) -> tensor<4xi1>",
    "complements that both hold": f"{through(NOT, INTEGER, ('not', 'i32')).rsplit(chr(10), 1)[0]}\n"
    "%both = stablehlo.and %s2, %s2 : tensor<4xi32>\n"
    "%p = stablehlo.convert %both : (tensor<4xi32>) -> tensor<4xi1>",
    "the other": "%p = stablehlo.not %q : tensor<4xi1>",
    "exclusive": "%t = stablehlo.constant dense<true> : tensor<4xi1>\n"
    "%p = stablehlo.xor %q, %t : tensor<4xi1>",
    "chosen": "%m = stablehlo.not %q : tensor<4xi1>\n"
    "%p = stablehlo.select %q, %q, %m : tensor<4xi1>, tensor<4xi1>",
}


@pytest.mark.parametrize("predicate", CHANGED.values(), ids=CHANGED.keys())
def test_what_is_no_truth_does_not_tell_that_an_example_is_done(predicate):
    with pytest.raises(hs.Refusal, match="the examples decide together how often this loop runs"):
        rewritten(predicate=predicate)
