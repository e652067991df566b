{{/* Name of the release's objects. */}}
{{- define "kvserving-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvserving-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if .Values.serviceAccount.create -}}
{{- include "kvserving-operator.fullname" . -}}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/* What selects the operator's pods. The policies of every KVServing let in pods with the first label. */}}
{{- define "kvserving-operator.selector" -}}
app.kubernetes.io/name: kvserving-operator
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* Labels of the pod of `helm test`; it must not be taken for an operator. */}}
{{- define "kvserving-operator.testLabels" -}}
app.kubernetes.io/name: kvserving-operator-test
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
{{- end -}}

{{/* The chart's labels of every object. */}}
{{- define "kvserving-operator.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" "kvserving-operator"
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/part-of" "kvserving"
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version)
-}}
{{- toYaml (mergeOverwrite (deepCopy .Values.commonLabels) $own) -}}
{{- end -}}

{{/*
Labels and annotations of one object: (dict "context" $ "labels" {...} "annotations" {...} "own" {...} "wave" "-1"), all
but the first optional. The chart's labels win over "labels", and "own" over all.
*/}}
{{- define "kvserving-operator.metadata" -}}
{{- $labels := mergeOverwrite (dict) (default dict .labels) (include "kvserving-operator.labels" .context | fromYaml) (default dict .own) -}}
{{- $annotations := mergeOverwrite (deepCopy .context.Values.commonAnnotations) (default dict .annotations) -}}
{{- if .context.Values.argocd.syncWaves -}}
{{- $_ := set $annotations "argocd.argoproj.io/sync-wave" (default "-1" .wave) -}}
{{- end -}}
labels:
  {{- toYaml $labels | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Address of an image: (dict "image" .Values.image "tag" .Chart.AppVersion). */}}
{{- define "kvserving-operator.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Whether an object that depends on a kind is made: (dict "context" $ "asked" "auto" "kind" "group/version/Kind"). */}}
{{- define "kvserving-operator.asked" -}}
{{- if or (eq .asked "enabled") (and (eq .asked "auto") (.context.Capabilities.APIVersions.Has .kind)) -}}
true
{{- end -}}
{{- end -}}
