from __future__ import annotations

from dataclasses import replace

from tests.control.bodies import KEY, live, pod, stored

from kvserving_operator.control.observe import Child, Key, Store, child_of, key_of, newer
from kvserving_operator.control.pods import PodState

MANIFEST = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "namespace": "prod", "labels": {"kvserving.dev/name": "qwen"}},
    "data": {"x": "1"},
}


def child(version: str, uid: str = "c1", **labels: str) -> Child:
    metadata = {"uid": uid, "resourceVersion": version}
    body = live(MANIFEST, stored(), metadata=metadata)
    body["metadata"]["labels"] = {**body["metadata"]["labels"], **labels}
    return child_of(body, "v1", "ConfigMap")


def store() -> tuple[Store, list[Key]]:
    told: list[Key] = []
    made = Store(told.append)
    made.put_serving(stored())
    told.clear()
    return made, told


def test_an_older_state_never_replaces_a_newer_one() -> None:
    made, _ = store()
    made.put_child(KEY, child("20"))
    made.put_child(KEY, child("9"))
    found = made.view(KEY)
    assert found is not None
    assert found.children["ConfigMap", "a"].version == "20"


def test_versions_are_compared_as_numbers() -> None:
    assert newer("10", "9")
    assert not newer("9", "10")
    assert newer("opaque", "9")


def test_a_new_version_without_a_difference_tells_nobody() -> None:
    made, told = store()
    made.put_child(KEY, child("1"))
    assert told == [KEY]
    made.put_child(KEY, child("2"))
    assert told == [KEY]
    made.put_child(KEY, child("3", **{"kvserving.dev/role": "x"}))
    made.remove_child(KEY, "ConfigMap", "a", "c1", "4")
    assert told[-1] == KEY


def test_a_late_answer_does_not_bring_back_what_is_gone() -> None:
    made, _ = store()
    made.put_child(KEY, child("1"))
    made.remove_child(KEY, "ConfigMap", "a", "c1", "3")
    made.put_child(KEY, child("2"))
    found = made.view(KEY)
    assert found is not None
    assert not found.children
    made.put_child(KEY, child("3", uid="c2"))
    found = made.view(KEY)
    assert found is not None
    assert found.children


def test_a_child_that_only_left_the_watch_is_known_again_in_its_next_state() -> None:
    """What a watch with a selector tells when our label is taken off, and what our putting it back answers."""
    made, _ = store()
    made.put_child(KEY, child("1"))
    made.remove_child(KEY, "ConfigMap", "a", "c1", "2")
    made.put_child(KEY, child("3"))
    found = made.view(KEY)
    assert found is not None
    assert found.children["ConfigMap", "a"].version == "3"


def test_a_deletion_of_another_uid_is_not_ours() -> None:
    made, _ = store()
    made.put_child(KEY, child("1"))
    made.remove_child(KEY, "ConfigMap", "a", "other", "9")
    found = made.view(KEY)
    assert found is not None
    assert found.children


def test_a_live_list_removes_what_the_watch_missed_and_spares_what_came_after() -> None:
    made, _ = store()
    made.put_child(KEY, child("1"))
    known = made.known("ConfigMap")
    assert made.retain("ConfigMap", [], known, "9") == 1
    made.put_child(KEY, child("5", uid="new"))
    assert made.retain("ConfigMap", [], known, "9") == 0
    found = made.view(KEY)
    assert found is not None
    assert [c.uid for c in found.children.values()] == ["new"]


def test_a_list_from_before_an_object_was_seen_is_no_proof_of_its_deletion() -> None:
    made, _ = store()
    made.put_child(KEY, child("20"))
    assert made.retain("ConfigMap", [], made.known("ConfigMap"), "9") == 0
    made.put_child(KEY, child("21"))
    found = made.view(KEY)
    assert found is not None
    assert found.children["ConfigMap", "a"].version == "21"
    assert made.retain("ConfigMap", [], made.known("ConfigMap"), "21") == 1


def test_an_object_of_the_same_name_from_before_never_replaces_the_present_one() -> None:
    made, _ = store()
    made.put_child(KEY, child("20", uid="new"))
    made.put_child(KEY, child("9", uid="former"))
    assert [uid for _, _, uid in made.known("ConfigMap")] == ["new"]
    made.put_serving(stored(uid="uid-former", resourceVersion="0"))
    assert [uid for _, _, uid in made.known("KVServing")] == [stored().uid]


def test_sizes_count_objects_children_and_pods() -> None:
    made, _ = store()
    made.put_child(KEY, child("1"))
    assert made.sizes() == (1, 1, 0)


def test_a_child_or_pod_whose_label_names_another_object_is_forgotten_under_the_former() -> None:
    made, told = store()
    other = Key("prod", "other")
    made.put_child(KEY, child("1"))
    made.put_child(other, child("2"))
    found = made.view(KEY)
    assert found is not None
    assert not found.children
    assert KEY in told
    made.leave("ConfigMap", "a", "c1", None)
    assert made.known("ConfigMap") == []


def test_a_list_from_before_a_pods_deletion_does_not_bring_it_back() -> None:
    made, _ = store()
    known = pod("p", "decode", "r")
    made.put_pod(KEY, replace(known, version="5"))
    made.remove_pod(KEY, "p", known.uid, "8")
    made.put_pod(KEY, replace(known, version="7"))
    found = made.view(KEY)
    assert found is not None
    assert found.pods == ()
    made.put_pod(KEY, replace(known, uid="another", version="9"))
    found = made.view(KEY)
    assert found is not None
    assert [p.uid for p in found.pods] == ["another"]


def test_a_child_is_known_by_its_controller_whatever_its_label_says() -> None:
    body = live(MANIFEST, stored())
    body["metadata"]["labels"] = {"kvserving.dev/name": "another"}
    assert key_of(body) == KEY
    del body["metadata"]["ownerReferences"]
    assert key_of(body) == Key("prod", "another")


def test_an_image_that_is_tried_again_tells_nobody_anew() -> None:
    made, told = store()
    image = {"name": "engine", "image": "a/b:v1"}

    def waits(version: str, reason: str, message: str) -> PodState:
        statuses = [{**image, "state": {"waiting": {"reason": reason, "message": message}}}]
        return replace(pod("d-1", "decode", "r", ready=False, containerStatuses=statuses), version=version)

    made.put_pod(KEY, waits("1", "ErrImagePull", "a/b:v1: not found"))
    before = len(told)
    for version in ("2", "4"):
        made.put_pod(KEY, waits(version, "ImagePullBackOff", 'Back-off pulling image "a/b:v1"'))
        made.put_pod(KEY, waits(f"{int(version) + 1}", "ErrImagePull", "a/b:v1: not found"))
    assert len(told) == before
    found = made.view(KEY)
    assert found is not None
    assert [known.registry for known in found.pods] == ["a/b:v1: not found"]
    made.put_pod(KEY, waits("6", "ErrImagePull", "unauthorized"))
    assert len(told) == before + 1
