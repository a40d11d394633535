"""What the tests share: tiers, seeds, and the slow truth they compare with."""

import importlib
import math
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

if "PYTEST_XDIST_WORKER" in os.environ:  # workers share the cores: one thread each, and for the processes they start
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

# No test sees what whoever runs them has fetched. Set here: processes are forked from one that keeps its environment.
CACHE = tempfile.TemporaryDirectory(prefix="pellucid-tests-")
os.environ["PELLUCID_CACHE"] = CACHE.name


# What `make quick` leaves out: by file, by a fixture that alone takes seconds (a browser, every experiment of the lab,
# a server, a model that is trained first), and each test that takes a second and more of a quiet core, with all its
# parameters (pytest --durations=0, 2026-11-20). Bar: 90 s on two cores.
SLOW_FILES = (
    "fuzz_child test_aspect test_captioner_benchmarks test_compile test_distributed test_docs test_exercises"
    " test_explain_memory test_feeding test_fuzz test_hostile_files test_layouts test_lite test_look"
    " test_packaging test_places test_readme test_resume test_serve_lab test_serve_trust test_site"
    " test_strength_explain test_strength_training test_together test_wheel test_written_out test_zoo"
)
SLOW_FIXTURES = "visit outcomes server bright run_folder"
SLOW_TESTS = """
test_8192_tokens_are_summarised_exactly_in_under_50_mb
test_a_beam_of_one_says_the_likeliest_word_each_time
test_a_beam_that_nothing_continues_takes_no_place_even_if_it_says_the_end
test_a_bill_of_materials_is_valid_and_names_every_package
test_a_caption_of_megabytes_is_left_out
test_a_captioner_is_judged_by_what_it_says
test_a_captioner_says_whole_words
test_a_checkpoint_with_an_average_and_a_damaged_one
test_a_class_has_a_name_of_its_own
test_a_compiled_model_is_told_so
test_a_confusion_matrix_fetches_no_data
test_a_dataset_of_ones_own_is_trained_on
test_a_figure_for_each_picture
test_a_flipped_bit_anywhere_is_noticed
test_a_flipped_bit_in_any_part_is_noticed
test_a_map_that_says_nothing_is_scored_in_an_order_that_the_seed_draws
test_a_mistake_seen_from_outside
test_a_model_that_does_not_look_is_told_of
test_a_model_that_says_one_thing_is_told_of
test_a_mutant_is_python_and_differs_in_one_place
test_a_page_of_what_a_classifier_sees
test_a_rate_is_found_and_nothing_is_kept
test_a_run_goes_on_for_longer
test_a_run_goes_on_to_the_last_bit
test_a_run_goes_on_to_the_same_end
test_a_run_is_followed_through_its_checkpoints
test_a_run_is_trained_as_it_is
test_a_run_that_is_stopped_goes_on_to_the_last_bit
test_a_run_with_a_teacher_resumes_to_the_last_bit
test_a_run_without_labels_resumes_to_the_last_bit_and_can_be_begun_with
test_a_search_takes_as_many_steps_as_it_says_words
test_a_subset_keeps_what_is_known_of_each_image
test_a_sweep_that_was_stopped_goes_on
test_a_trace_of_a_captioner
test_all_of_a_folder_of_classes_is_evaluated
test_alone_no_label_moves_a_weight_and_beside_labels_both_do
test_attend_is_the_formula
test_backgrounds_are_dark_everywhere
test_beams_equal_lists_and_sorting
test_beams_wide_enough_find_what_trying_everything_finds
test_cached_decoding_equals_the_full_forward
test_captions_follow_from_the_pictures
test_captions_of_a_set_are_those_of_its_pictures
test_captions_of_ones_own_are_trained_on
test_compiles_to_one_graph
test_confusion_of_many_classes_has_no_numbers
test_contexts_that_are_done_leave_and_nothing_else_changes
test_ctrl_c_while_compiling_ends_it_at_once_and_it_can_go_on
test_curves_without_an_evaluation
test_damaged_files_are_refused_in_a_sentence_or_read
test_demo_trains_and_draws
test_each_operation_is_torchvisions
test_evaluate_gives_the_scores_and_their_controls
test_every_combination_is_a_run_of_its_own_and_the_best_comes_first
test_every_option_gives_logits_features_and_another_size
test_every_recipe_takes_steps_in_both_stages
test_examples_go_from_the_best_to_the_worst
test_facts_that_make_no_sense_get_a_sentence
test_faithfulness_is_measured_beside_random
test_five_beams_and_the_best_of_them_unless_asked_otherwise
test_from_hugging_face
test_from_timm_and_back
test_gradcheck
test_headers_with_anything_anywhere_are_a_trace_or_a_sentence
test_help_is_quick_and_needs_no_torch
test_help_shows_an_example_for_every_verb
test_it_learns_to_reverse_ten_digits
test_killed_in_either_stage_it_ends_the_same
test_lines_that_are_piped_in_are_translated
test_memory_that_a_step_frees_is_there_for_the_next
test_meteor_is_the_jars
test_no_bytes_break_the_server
test_no_text_lies_on_another
test_of_many_draws_each_is_a_row_of_its_own
test_one_begins_as_another_and_lora_moves_its_attentions
test_one_experiment_prints_its_page
test_pairs_cannot_be_split
test_parts_of_a_batch_of_images
test_permuting_tokens_permutes_outputs_unless_they_have_positions
test_rescaling_is_said_on_the_picture_and_shows
test_reversing_is_deterministic
test_scenes_are_judged_by_the_truth
test_self_critical_training_finds_what_is_rewarded
test_several_are_learned_told_and_evaluated
test_shape_size_and_normalisation_are_adopted_and_the_head_is_new
test_shapes_draws_a_picture
test_spice_is_the_jars
test_statistics_of_a_set_as_large_as_cifar10_are_quick
test_steps_are_timed_for_each_size_of_images
test_steps_over_all_places_equal_steps_over_those_written
test_the_api_keeps_to_its_description
test_the_bounds_themselves_are_let_in
test_the_c_library_says_that_it_was_told
test_the_confusion_matrix_is_drawn_once
test_the_estimate_is_what_happens_and_changes_nothing
test_the_first_ctrl_c_is_answered_at_once
test_the_heads_in_numbers_and_the_health_of_a_captioner
test_the_help_of_a_recipe_lists_its_fields
test_the_longest_dropout_is_refused_and_one_below_it_drops
test_the_self_critical_loss_is_its_formula
test_the_server_runs_an_experiment_with_other_parameters
test_the_summary_figures_and_traces
test_train_says_what_it_will_do_and_goes_on
test_training_ends_with_what_evaluating_finds
test_training_leaves_the_stem_alone_and_moves_the_rest
test_two_processes_are_one
test_two_stages_are_summed_up_and_the_second_begins_where_the_first_was_best
test_verdicts_dont_hang_on_the_seed
test_what_a_captioner_reads_is_judged_by_each_next_word
test_what_could_be_trained_on_can_be_evaluated_split_by_split
test_what_is_drawn_comes_from_the_generator_that_is_given
test_what_is_never_said_is_not_said_to_be_explained_either
test_what_is_not_asked_for_is_five_beams_the_best_of_them_and_one_draw
test_what_is_said_has_the_probability_and_the_attention_of_the_whole_sentence
test_what_it_reads_along_can_be_followed_to_the_picture_and_what_it_says_itself_counts_where_it_is_right
test_what_nobody_told_it_is_in_its_features
test_what_only_the_teacher_knows_is_learned
test_what_python_writes_is_read_as_python_reads_it
test_who_asks_again_gets_what_took_too_long
test_words_in_pieces_are_forced_piece_by_piece
test_words_of_thousands_of_odd_captions_are_the_official_tokenizers
"""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that `make quick` leaves out aren't even imported there."""
    return True if config.option.markexpr == "not slow" and collection_path.stem in SLOW_FILES.split() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    files, tests, fixtures = SLOW_FILES.split(), SLOW_TESTS.split(), set(SLOW_FIXTURES.split())
    for item in items:
        waits = not fixtures.isdisjoint(getattr(item, "fixturenames", ()))
        if waits or item.path.stem in files or item.name.partition("[")[0] in tests:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """What was skipped, counted by reason, in the line before the last."""
    yield
    skipped = (report.longrepr[2] for report in terminalreporter.getreports("skipped"))
    reasons = Counter(reason.removeprefix("Skipped: ").partition(":")[0] for reason in skipped)
    if reasons:
        terminalreporter.line("skipped: " + ", ".join(f"{n} × {reason}" for reason, n in reasons.most_common()))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


STUBS: list[torch.library.Library] = []  # a library forgets its operators when it goes


@pytest.fixture(scope="session")
def torchvision() -> ModuleType:
    """A CPU build of torch may lack torchvision's operators; it is imported with stubs then, and nothing calls them."""
    try:
        return quietly_imported("torchvision.models.vision_transformer", "torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        STUBS.append(library := torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return quietly_imported("torchvision.models.vision_transformer", "torchvision")


@pytest.fixture(scope="module")
def no_torchvision(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that a test starts find no torchvision, which may not be importable; transformers does without."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("import sys\n\nsys.modules['torchvision'] = None\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def timm(torchvision: ModuleType) -> ModuleType:
    return quietly_imported("timm", "timm")


@pytest.fixture(scope="session")
def transformers(torchvision: ModuleType) -> ModuleType:
    return quietly_imported("transformers.models.vit.modeling_vit", "transformers")


def quietly_imported(module: str, package: str) -> ModuleType:
    """The package, once the module is imported; what others warn of while they are imported is not ours to fix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(module)
    return sys.modules[package]


@torch.no_grad()
def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """Every parameter random, so that no zero hides an error: biases, norms, tokens and layer scales too."""
    for parameter in model.parameters():
        parameter.normal_(std=0.3)
        if parameter.ndim == 1:
            parameter.add_(0.5)
    return model


def truth(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, beta: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention written as a reader of a textbook would, one query at a time, in float64: (output, weights)."""
    b, h, n_q, d = q.shape
    g, n_k = k.shape[1], k.shape[2]
    beta = 1 / math.sqrt(d) if beta is None else beta
    full = None if mask is None else mask.expand(b, h, n_q, n_k)
    weights = torch.zeros(b, h, n_q, n_k, dtype=torch.float64)
    for bi in range(b):
        for hi in range(h):
            for i in range(n_q):
                open_keys = [
                    j
                    for j in range(n_k)
                    if not (causal and j > i + n_k - n_q)
                    and not (full is not None and full.dtype == torch.bool and not full[bi, hi, i, j])
                ]
                if not open_keys:
                    continue
                keys = k[bi, hi // (h // g), open_keys].double()
                dots = keys @ q[bi, hi, i].double()
                if math.isinf(beta):
                    best = dots.max() if beta > 0 else dots.min()
                    row = torch.isclose(dots, best, rtol=1e-12, atol=1e-12).double()
                else:
                    s = beta * dots
                    if full is not None and full.dtype != torch.bool:
                        s = s + full[bi, hi, i, open_keys].double()
                    row = (s - s.max()).exp()
                weights[bi, hi, i, open_keys] = row / row.sum()
    return weights @ v.double().repeat_interleave(h // g, 1), weights


def qkv(b=2, h=4, n_q=5, n_k=7, d=8, e=6, g=None, dtype=torch.float64, grad=False) -> list[Tensor]:
    g = h if g is None else g
    shapes = ((b, h, n_q, d), (b, g, n_k, d), (b, g, n_k, e))
    return [torch.randn(shape, dtype=dtype).requires_grad_(grad) for shape in shapes]


MASK_KINDS = ("none", "causal", "padding", "window", "prefix", "block_sparse", "boolean", "additive", "alibi", "dead")


def make_mask(kind: str, b=2, h=4, n_q=5, n_k=7) -> tuple[Tensor | None, bool]:
    """A mask of each kind and whether attend's causal flag is set."""
    from pellucid.ops import masks, positions

    match kind:
        case "none":
            return None, False
        case "causal":
            return None, True
        case "padding":
            return masks.padding(torch.arange(b) % (n_k + 1), n_k), False
        case "window":
            return masks.window(n_q, n_k, radius=1), False
        case "prefix":
            return masks.prefix(n_q, n_k, length=3), False
        case "block_sparse":
            grid = torch.rand(h, -(-n_q // 2), -(-n_k // 2)) > 0.5
            return masks.block_sparse(grid, 2)[:, :n_q, :n_k], False
        case "boolean":
            return torch.rand(b, h, n_q, n_k) > 0.5, True
        case "additive":
            return masks.additive(masks.causal(n_q, n_k)), False
        case "alibi":
            return positions.alibi(h, n_q, n_k), True
        case "dead":
            mask = torch.rand(b, 1, n_q, n_k) > 0.3
            mask[0, :, n_q // 4] = False
            mask[-1] = False
            return mask, False
    raise AssertionError(kind)
