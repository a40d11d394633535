"""Run by test_aspect, where no types are checked: one graph serves pictures of every shape."""

import torch
from test_aspect import SHAPES, draw_pictures, lay, small


def main():
    for positions in ("learned", "rotary", "sinusoidal"):
        model = small(positions=positions).train()
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for shapes in (SHAPES, SHAPES[::-1]):
            batch = lay(model, draw_pictures(model, *shapes))
            torch.testing.assert_close(compiled(batch), model(batch), atol=1e-12, rtol=0)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    print("same")


if __name__ == "__main__":
    main()
