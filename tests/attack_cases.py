"""Every registered attack in a table: what it is tried on, and where its controls are."""

from dataclasses import dataclass, field
from typing import Any

from fedpriv.defenses import parse_choice
from fedpriv.federation.method import LocalTraining


@dataclass(frozen=True)
class Case:
    """On what an attack is tried, and which tests are its positive and its negative control (``module::function``)."""

    method: str
    kind: str
    positive: str
    negative: str
    options: dict[str, Any] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    n_targets: int = 2


INVERTED = (
    "test_inversion::test_positive_control_representations_give_the_images_away",
    "test_inversion::test_negative_control_other_peoples_uploads_give_nothing_away",
)

SUMMED: dict[str, Any] = {"defenses": (parse_choice("secure-aggregation"),)}
TWO_IMAGES = LocalTraining(learning_rate=0.1, batch_size=2, max_steps=1)

MATCHED = "test_inverting_gradients::test_negative_control_another_clients_upload_gives_the_floor"

CASES = {
    "dip": Case("fedproto", "prototype", *INVERTED),
    "pixels": Case("fedproto", "prototype", *INVERTED),
    "joint": Case(
        "fedproto",
        "prototype",
        "test_joint::test_both_images_of_a_prototype_of_two_are_recovered_where_one_image_fails",
        "test_joint::test_another_clients_upload_is_worth_no_more_than_a_flat_image",
        {"most": 2},
    ),
    "decoder": Case(
        "fedproto",
        "prototype",
        *["test_decoder::test_private_images_come_back_and_those_of_a_strange_upload_do_not"] * 2,
        {"width": 16},
        {"attacker_data": "same_domain"},
    ),
    "learned": Case(
        "fedproto",
        "prototype",
        *["test_learned::test_private_images_come_back_better_than_decoded_and_those_of_a_strange_upload_do_not"] * 2,
        card={"attacker_data": "same_domain"},
    ),
    "unmix": Case(
        "fedre",
        "entangled",
        "test_round_posterior::test_positive_control_common_drift_and_head_leave_least_squares_behind",
        "test_round_posterior::test_negative_control_another_clients_uploads_under_the_own_weights_tell_nothing_beyond_the_head",
        card={"rounds_seen": 2},
    ),
    "all-rounds": Case(
        "fedproto",
        "prototype",
        "test_all_rounds::test_positive_control_rounds_complete_each_other",
        "test_all_rounds::test_negative_control_other_images_in_the_same_place_give_nothing",
        card={"rounds_seen": 2},
        config={"keep": (1, 2)},
    ),
    "linear-layer": Case(
        "fedavg",
        "model",
        "test_linear_layer::test_positive_control_a_single_image_is_exact",
        "test_linear_layer::test_negative_control_noise_for_an_update_gives_no_image",
    ),
    "dlg": Case(
        "fedavg",
        "model",
        "test_gradients::test_positive_control_single_images_come_back",
        "test_gradients::test_negative_control_noise_for_a_gradient_gives_no_image",
        {"redraws": 0},
    ),
    "inverting-gradients": Case(
        "fedavg", "model", "test_inverting_gradients::test_positive_control_single_images_come_back", MATCHED
    ),
    "gradient-dip": Case(
        "fedavg", "model", "test_inverting_gradients::test_positive_control_of_the_generator_network", MATCHED
    ),
    "untransform": Case(
        "fedavg",
        "model",
        "test_untransform::test_an_update_of_a_transformed_image_leads_to_the_image",
        "test_untransform::test_noise_becomes_no_picture_of_the_clients",
        {"policy": "7"},
        {"attacker_data": "same_domain"},
        {"defenses": (parse_choice("transform:policy=7"),)},
    ),
    "demix": Case(
        "fedavg",
        "model",
        "test_demix::test_images_of_different_classes_come_back_unmixed",
        "test_demix::test_an_update_of_noise_leads_to_none_of_the_images",
        config={"defenses": (parse_choice("mixup"),), "training": TWO_IMAGES},
    ),
    "pooled": Case(
        "fedavg",
        "model",
        "test_aggregated::test_three_clients_images_come_back_from_the_mean_of_their_updates_each_to_its_owner",
        "test_aggregated::test_a_mean_without_the_client_gives_nothing_of_it",
        config=SUMMED,
        n_targets=3,
    ),
    "head-update": Case(
        "lg-fedavg",
        "classifier",
        "test_head_update::test_one_image_is_exact_above_60_db_and_its_label_is_read_off",
        "test_head_update::test_shuffled_uploads_give_somebody_elses_representation",
    ),
    "angle-update": Case(
        "fedral",
        "angle-matrix",
        "test_angle_update::test_one_image_is_exact_from_dense_and_from_blocks",
        "test_angle_update::test_the_diagonal_does_not_give_many_classes",
    ),
    "class-inversion": Case(
        "fd",
        "logits",
        "test_class_inversion::test_positive_control_the_model_answers_as_uploaded",
        "test_class_inversion::test_the_control_asks_for_another_class",
    ),
    "paired-logits": Case(
        "fedmd",
        "public-logits",
        "test_public_outputs::test_positive_control_templates_that_outputs_depend_on_come_back",
        "test_public_outputs::test_negative_control_outputs_at_random_give_the_floor",
        {"width": 16},
        {"attacker_data": "same_domain"},
    ),
    "membership": Case(
        "fedproto",
        "prototype",
        "test_membership::test_the_one_image_behind_a_prototype_scores_highest",
        "test_membership::test_what_is_near_to_everybody_gives_way_to_what_is_near_to_the_client_and_the_same_upload_of_all_is_no_null",
    ),
    "property": Case(
        "fedproto",
        "prototype",
        "test_property::test_positive_control_lengths_that_follow_counts_give_the_majority_away",
        "test_property::test_negative_control_lengths_that_do_not_give_nothing_away",
        {"shadow_clients": 2, "steps": 2},
        {"attacker_data": "same_domain", "extractor": "none"},
    ),
    "labels": Case(
        "fedproto",
        "prototype",
        "test_property::test_positive_control_lengths_that_follow_counts_give_the_majority_away",
        "test_property::test_negative_control_lengths_that_do_not_give_nothing_away",
    ),
}
"""One line an attack; a new one has one here too."""
