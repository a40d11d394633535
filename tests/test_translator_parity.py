"""Equal to nn.Transformer and to Hugging Face's Marian with copied weights, from theirs to ours and back."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from pellucid.data.tokenizer import END, PAD
from pellucid.decode import greedy
from pellucid.hub.translators import from_marian, from_torch_transformer, to_marian, to_torch_transformer
from pellucid.models import Transformer, TransformerConfig
from pellucid.ops import masks

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
EXISTS = masks.padding(torch.tensor([9, 4, 2]))


def jitter(module):
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    return module.eval()


def marian(transformers, activation="relu"):
    config = transformers.MarianConfig(
        vocab_size=31, d_model=24, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, bos_token_id=1,
        decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=64,
        activation_function=activation, scale_embedding=True, pad_token_id=PAD, eos_token_id=END,
        decoder_start_token_id=PAD, forced_eos_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.MarianMTModel(config)
        for name, p in model.named_parameters():
            if "embed_positions" not in name:
                nn.init.normal_(p, std=0.3)
    return model.eval()


def ask(theirs, source, target, exists):
    return theirs(
        input_ids=source, attention_mask=exists[:, 0, 0].long(), decoder_input_ids=target, use_cache=False
    ).logits


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_marian_is_ours_and_back(transformers, activation):
    theirs = marian(transformers, activation)
    ours = from_marian(theirs.config, theirs.state_dict())
    source, target = torch.randint(6, 31, (3, 9)), torch.randint(6, 31, (3, 7))
    expected = ask(theirs, source, target, EXISTS)
    assert_close(ours(source, target, EXISTS), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours(source, target), expected, rtol=1e-3, atol=1e-3)  # the twin: padding is hidden

    again = marian(transformers, activation)
    for p in again.parameters():
        nn.init.zeros_(p)
    again.load_state_dict(to_marian(ours), strict=True)
    assert_close(ask(again, source, target, EXISTS), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_marian_says_the_same_as_ours(transformers):
    """Greedy decoding with its generate, and with ours, over padded sources."""
    theirs = marian(transformers)
    ours = from_marian(theirs.config, theirs.state_dict())
    source = torch.randint(6, 31, (3, 9))
    said = theirs.generate(
        source, attention_mask=EXISTS[:, 0, 0].long(), num_beams=1, do_sample=False, max_new_tokens=12,
        bad_words_ids=[[PAD]],
    )[:, 1:]  # fmt: skip
    found = greedy(
        ours, ours.encode(source, EXISTS), start=PAD, end=END, length=12, forbidden=(PAD,), context_mask=EXISTS
    )
    for row, tokens, length in zip(said, found.tokens[:, 0], found.lengths[:, 0], strict=True):
        assert row[: int(length)].tolist() == tokens[: int(length)].tolist()


def test_what_marian_has_and_ours_has_not_is_refused(transformers):
    theirs = marian(transformers)
    weights = theirs.state_dict()
    with pytest.raises(ValueError, match="final_logits_bias"):
        from_marian(theirs.config, weights | {"final_logits_bias": torch.ones(1, 31)})
    theirs.config.scale_embedding = False
    with pytest.raises(ValueError, match="scale_embedding=True"):
        from_marian(theirs.config, weights)
    theirs.config.activation_function = "swish"
    with pytest.raises(ValueError, match="activation is 'swish'"):
        from_marian(theirs.config, weights)
    pre = Transformer(TransformerConfig(vocabulary=9, width=8, hidden=8, heads=2, norm="pre"))
    with pytest.raises(ValueError, match="Marian can't express this transformer; it needs norm='post'"):
        to_marian(pre)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_nn_transformer_is_ours_and_back(norm, activation):
    torch.manual_seed(3)
    theirs = nn.Transformer(
        24, 4, 2, 3, 40, dropout=0.0, activation=activation, norm_first=norm == "pre", batch_first=True
    )
    jitter(theirs)
    ours = from_torch_transformer(theirs, 31)
    jitter(ours.source_embedding)
    source, target = torch.randint(31, (3, 9)), torch.randint(31, (3, 7))
    hidden = ~EXISTS[:, 0, 0]

    def around(stacks):
        x = ours.source_positions(ours.source_embedding(source))
        y = ours.target_positions(ours.source_embedding(target))
        how = {"src_key_padding_mask": hidden, "memory_key_padding_mask": hidden}
        return ours.source_embedding.logits(stacks(x, y, tgt_mask=~masks.causal(7), **how))

    expected = around(theirs)
    assert_close(ours(source, target, EXISTS), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours(source, target), expected, rtol=1e-3, atol=1e-3)
    again = to_torch_transformer(ours)
    assert_close(around(again), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="needs no qk_norm"):
        to_torch_transformer(Transformer(TransformerConfig(width=8, heads=2, hidden=8, norm="pre", qk_norm=True)))
