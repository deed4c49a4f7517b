"""The transformers scorer against transformers itself."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM

from agentrl.teacher.hf_scorer import HfScorer, TeacherModelError
from agentrl.teacher.scorer import ScoreItem, Scorer


def score(scorer: HfScorer, *items: ScoreItem):
    return asyncio.run(scorer.score(list(items)))


def test_it_is_a_scorer(scorer):
    assert isinstance(scorer, Scorer)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
def test_the_whole_vocabulary_equals_transformers_log_softmax_without_the_padding_rows(
    scorer, make_item, oracle, temperature
):
    item = make_item(30, (3, 9), (20, 30), top_k=scorer.identity.vocabulary, temperature=temperature)
    [scores] = score(scorer, item)
    exact_T_V = oracle(item.token_ids_T, temperature)
    assert scores.support_ids_n_k.shape == (16, scorer.identity.vocabulary)
    for row, position in enumerate([*range(3, 9), *range(20, 30)]):
        by_id = np.empty(scorer.identity.vocabulary, np.float32)
        by_id[scores.support_ids_n_k[row]] = scores.support_logprobs_n_k[row]
        np.testing.assert_allclose(by_id, exact_T_V[position - 1], atol=2e-5)
    assert np.all(scores.tail_logprobs_n == -np.inf)


def test_a_teacher_that_is_the_student_gives_no_kl(scorer, make_item, oracle):
    item = make_item(40, (5, 40), top_k=8)
    [scores] = score(scorer, item)
    student_n_V = oracle(item.token_ids_T)[4:39]
    student_n_k = np.take_along_axis(student_n_V, scores.support_ids_n_k, axis=1)
    valid = scores.support_ids_n_k >= 0
    q_n_k = np.where(valid, np.exp(scores.support_logprobs_n_k), 0.0)
    on_support = np.where(valid, q_n_k * (scores.support_logprobs_n_k - student_n_k), 0.0).sum(1)
    student_tail = np.log1p(-np.where(valid, np.exp(student_n_k), 0.0).sum(1))
    kl_n = on_support + np.exp(scores.tail_logprobs_n) * (scores.tail_logprobs_n - student_tail)
    np.testing.assert_allclose(kl_n, 0.0, atol=1e-5)


def test_padding_rows_of_the_output_layer_have_no_say(scorer, teacher_dir):
    model = AutoModelForCausalLM.from_pretrained(teacher_dir)
    assert scorer.identity.padded_vocabulary == model.get_output_embeddings().weight.shape[0] == 448
    assert scorer.identity.vocabulary < 448


def test_one_pass_gives_every_turn_what_a_pass_that_ends_there_would(scorer, make_item):
    whole = make_item(60, (5, 10), (30, 36), (50, 60))
    [at_once] = score(scorer, whole)
    for index, (rows, end) in enumerate([(slice(0, 5), 10), (slice(5, 11), 36), (slice(11, 21), 60)]):
        alone = ScoreItem(whole.token_ids_T[:end], whole.turns_K_2[index : index + 1], None, 4, 1.0)
        [cut] = score(scorer, alone)
        np.testing.assert_allclose(
            np.exp(at_once.support_logprobs_n_k[rows, :4]), np.exp(cut.support_logprobs_n_k[:, :4]), atol=1e-6
        )
        np.testing.assert_allclose(at_once.values_K[index], cut.values_K[0], atol=2e-5)


def test_items_of_other_lengths_supports_and_temperatures_share_a_pass_without_touching_each_other(scorer, make_item):
    named = np.full((4, 2), -1, np.int32)
    named[:, 0] = 7
    items = [
        make_item(12, (2, 6), seed=1),
        make_item(90, (1, 90), seed=2, top_k=9),
        make_item(33, (10, 14), seed=3, temperature=2.0),
        make_item(8, (4, 8), seed=4, named=named),
        make_item(300, (299, 300), seed=5),
    ]
    together = score(scorer, *items)
    for item, answer in zip(items, together, strict=True):
        [alone] = score(scorer, item)
        assert answer.support_ids_n_k.tolist() == alone.support_ids_n_k.tolist()
        np.testing.assert_allclose(answer.support_logprobs_n_k, alone.support_logprobs_n_k, atol=2e-5)
        np.testing.assert_allclose(answer.tail_logprobs_n, alone.tail_logprobs_n, atol=2e-5)
        np.testing.assert_allclose(answer.values_K, alone.values_K, atol=2e-5)


def test_named_ids_are_answered_exactly(scorer, make_item, oracle):
    named = np.array([[11, 12], [13, -1], [14, 15]], np.int32)
    item = make_item(20, (7, 10), top_k=0, named=named)
    [scores] = score(scorer, item)
    exact_T_V = oracle(item.token_ids_T)
    for row, position in enumerate((7, 8, 9)):
        found = dict(zip(scores.support_ids_n_k[row].tolist(), scores.support_logprobs_n_k[row].tolist(), strict=True))
        for wanted in named[row][named[row] >= 0].tolist():
            np.testing.assert_allclose(found[wanted], exact_T_V[position - 1, wanted], atol=2e-5)


def test_chunks_of_logits_do_not_show_in_the_answer(scorer, make_item, monkeypatch):
    item = make_item(50, (1, 50))
    [whole] = score(scorer, item)
    monkeypatch.setattr("agentrl.teacher.hf_scorer.CHUNK_FLOATS", 448 * 7)
    [chunked] = score(scorer, item)
    assert whole.support_ids_n_k.tolist() == chunked.support_ids_n_k.tolist()
    np.testing.assert_allclose(whole.support_logprobs_n_k, chunked.support_logprobs_n_k, atol=1e-6)


@torch.no_grad()
def test_a_value_is_the_head_on_the_state_before_the_turns_first_token(scorer, make_item, teacher_dir):
    item = make_item(25, (4, 8), (15, 20))
    [scores] = score(scorer, item)
    model = AutoModelForCausalLM.from_pretrained(teacher_dir)
    head = load_file(teacher_dir / "value_head/weights.safetensors")
    hidden_T_H = model.model(torch.from_numpy(item.token_ids_T.astype(np.int64))[None]).last_hidden_state[0]
    expected = hidden_T_H[[3, 14]] @ head["weight"][0] + head["bias"]
    np.testing.assert_allclose(scores.values_K, expected.numpy(), atol=1e-5)


def test_without_a_value_head_there_are_no_values(tiny_model_dir, make_item):
    plain = HfScorer.load(tiny_model_dir, dtype="float32", batch_tokens=256)
    [scores] = score(plain, make_item(9, (2, 4)))
    plain.close()
    assert plain.identity.value is None
    assert scores.values_K is None


def test_a_value_head_without_a_calibration_says_that_it_is_uncalibrated(teacher_copy):
    (teacher_copy / "value_head/config.json").unlink()
    scorer = HfScorer.load(teacher_copy, dtype="float32", batch_tokens=256)
    scorer.close()
    assert scorer.identity.value is not None
    assert scorer.identity.value.calibrated is False


def test_greedy_sampling_equals_transformers_generate_over_the_true_vocabulary(scorer, teacher_dir):
    prompt = [5, 9, 33, 80]
    model = AutoModelForCausalLM.from_pretrained(teacher_dir)
    padding = list(range(scorer.identity.vocabulary, 448))
    expected = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=12, suppress_tokens=padding, attention_mask=None
    )
    sampled = asyncio.run(scorer.sample(prompt, max_tokens=12, temperature=0.0, seed=0))
    assert sampled.token_ids == expected[0, 4:].tolist()


def test_sampling_twice_with_one_seed_gives_the_same_tokens(scorer):
    first, second = (asyncio.run(scorer.sample([5, 9], 16, temperature=1.0, seed=3)) for _ in range(2))
    assert first == second
    assert max(first.token_ids) < scorer.identity.vocabulary


def test_a_model_that_caps_its_logits_is_refused(teacher_copy):
    config = Gemma2Config(
        vocab_size=448,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=64,
        final_logit_softcapping=0.01,
    )
    for file in teacher_copy.rglob("*.safetensors"):
        file.unlink()
    Gemma2ForCausalLM(config).save_pretrained(teacher_copy)
    with pytest.raises(TeacherModelError, match="changes its logits after the output layer"):
        HfScorer.load(teacher_copy, dtype="float32", batch_tokens=256)


def test_a_folder_without_a_model_is_refused_by_name(tmp_path):
    with pytest.raises(TeacherModelError, match=r"teacher\.scorer\.path .* has no config\.json"):
        HfScorer.load(tmp_path, dtype="float32", batch_tokens=256)


def test_a_tokenizer_with_more_ids_than_the_output_layer_has_rows_is_refused(teacher_copy):
    model = AutoModelForCausalLM.from_pretrained(teacher_copy)
    model.resize_token_embeddings(100)
    model.save_pretrained(teacher_copy)
    with pytest.raises(TeacherModelError, match="they do not belong together"):
        HfScorer.load(teacher_copy, dtype="float32", batch_tokens=256)


@pytest.mark.parametrize("text", ["{", '{"gamma": 2}', '{"discount": 1}', "[]"])
def test_a_calibration_that_cannot_be_read_is_refused(teacher_copy, text):
    (teacher_copy / "value_head/config.json").write_text(text)
    with pytest.raises(TeacherModelError, match=r"value_head/config\.json must be"):
        HfScorer.load(teacher_copy, dtype="float32", batch_tokens=256)


def test_weights_in_pickle_format_are_not_loaded(teacher_copy):
    state = AutoModelForCausalLM.from_pretrained(teacher_copy).state_dict()
    (teacher_copy / "model.safetensors").unlink()
    torch.save(state, teacher_copy / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        HfScorer.load(teacher_copy, dtype="float32", batch_tokens=256)


def test_the_weights_digest_changes_with_the_value_head(teacher_copy, scorer):
    assert json.loads((teacher_copy / "value_head/config.json").read_text())["gamma"] == scorer.identity.value.gamma
    (teacher_copy / "value_head/weights.safetensors").unlink()
    other = HfScorer.load(teacher_copy, dtype="float32", batch_tokens=256)
    other.close()
    assert other.identity.weights_sha256 != scorer.identity.weights_sha256
