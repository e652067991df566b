"""The control-plane lane: a real etcd, kube-apiserver and kube-controller-manager on this machine, and faults.

| Part | What it is |
|---|---|
| ``build`` | the three programs, built once from pinned Go modules into a cache outside the repository |
| ``controlplane.ControlPlane`` | one control plane: up in about two seconds, parts stopped and restarted by name |
| ``cluster.Cluster`` | what a test does with it, or with an existing cluster: users, rights, CRDs, quota, kubeconfigs |
| ``fake_kubelet.FakeKubelet`` | scheduler, node and kubelet by script: pods get a node, an address and a status |
| ``process_runtime.ProcessRuntime`` | for that kubelet: the pods are real processes, so that real engines are Ready |
| ``fault_proxy.FaultProxy`` | between a client and the apiserver: faults by rule, and every request counted |
| ``fixtures`` | pytest fixtures and hooks, for the ``conftest.py`` of every lane that needs a control plane |

    with ControlPlane(crds=CRDS) as plane, FakeKubelet(plane) as kubelet, FaultProxy(plane) as proxy:
        namespace = plane.namespace()
        who = plane.service_account(namespace, "operator", rules)
        config = plane.kubeconfig(who, server=proxy.url)
        kubelet.script({"kvserving.dev/role": "decode"}, ready(after=0.5))
        with proxy.fault(Match.writes(nth=3), Call(kill_operator, then="cut")) as rule:
            ...
        assert rule.hits == 1
        proxy.wait_quiet(5)

``pytest e2e/controlplane`` runs all of it. ``KUBEBUILDER_ASSETS`` names a folder with the programs, ``KUBECONFIG`` an
existing cluster for the tests that need no faults of the control plane itself. Without Go and without either, one line
says so and the tests are skipped; where ``CI`` is set they fail instead.

What it cannot show: scheduling, image pulls, network policies, Service traffic, and probes unless pods are processes.
"""
