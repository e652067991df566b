"""What is generated into the Helm chart, and from what.

| File of the chart | Source |
|---|---|
| ``values.schema.json``, ``README.md``'s table | comments of ``values.yaml`` (``annotated``, ``schema``, ``readme``) |
| ``templates/crds.yaml`` | the CRD (``api.schema``) |
| ``templates/_rules.tpl`` | the table of permissions (``control.permissions``) |
| ``dashboards/*.json`` | ``dashboards`` |

``python -m kvserving_operator.chart --write charts/kvserving-operator`` writes all of them.
"""
