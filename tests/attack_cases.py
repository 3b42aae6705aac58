"""Every registered attack in a table: what it is tried on, and where its controls are."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """On what an attack is tried, and which tests are its positive and its negative control (``module::function``)."""

    method: str
    kind: str
    positive: str
    negative: str
    options: dict[str, Any] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)


INVERTED = (
    "test_inversion::test_positive_control_representations_give_the_images_away",
    "test_inversion::test_negative_control_other_peoples_uploads_give_nothing_away",
)

UNMIXED = (
    "test_unmixing_once::test_the_rungs_in_order_for_every_mechanism",
    "test_unmixing_once::test_negative_control_another_clients_upload_under_the_own_weights_misleads",
)

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
    "unmix": Case(
        "fedre",
        "entangled",
        "test_round_posterior::test_positive_control_common_drift_and_head_leave_the_older_estimate_behind",
        "test_round_posterior::test_negative_control_another_clients_uploads_under_the_own_weights_tell_nothing_beyond_the_head",
        card={"rounds_seen": 2},
    ),
    "unmix-prior": Case("fedre", "entangled", *UNMIXED),
    "unmix-label": Case("fedre", "entangled", *UNMIXED),
    "average": Case(
        "fedproto",
        "prototype",
        "test_averaging::test_exact_uploads_stay_exact_even_when_they_move",
        "test_averaging::test_negative_control_noise_that_lasts_does_not_average_out",
        card={"rounds_seen": 2},
    ),
    "difference": Case(
        "fedproto",
        "prototype",
        "test_difference::test_positive_control_an_image_added_to_a_large_class_is_recovered",
        "test_difference::test_negative_control_another_extractor_between_the_rounds_leaves_noise",
        card={"rounds_seen": 2},
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
    "head-update": Case(
        "lg-fedavg",
        "classifier",
        "test_head_update::test_one_image_is_exact_above_60_db_and_its_label_is_read_off",
        "test_head_update::test_permuted_uploads_give_somebody_elses_representation",
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
        "test_membership::test_an_untrained_client_with_many_images_of_each_class_gives_chance",
    ),
    "likelihood-ratio": Case(
        "fedavg",
        "model",
        "test_likelihood_ratio::test_members_of_a_step_are_found",
        "test_likelihood_ratio::test_members_of_another_client_are_not",
        {"shadows": 8},
        {"attacker_data": "same_domain"},
    ),
    "property": Case(
        "fedproto",
        "prototype",
        "test_property::test_positive_control_lengths_that_follow_counts_give_the_majority_away",
        "test_property::test_negative_control_lengths_that_do_not_give_nothing_away",
        {"known": "others"},
    ),
}
"""One line an attack; a new one has one here too."""
