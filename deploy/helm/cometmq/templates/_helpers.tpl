{{- define "cometmq.labels" -}}
app.kubernetes.io/name: cometmq
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "cometmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- /* Addresses of the pods of a headless service, joined by semicolons. */ -}}
{{- define "cometmq.addresses" -}}
{{- $list := list -}}
{{- range $number := until (int .replicas) -}}
{{- $list = append $list (printf "%s-%d.%s.%s.svc:%d" $.service $number $.service $.namespace (int $.port)) -}}
{{- end -}}
{{- join ";" $list -}}
{{- end }}

{{- define "cometmq.nameServers" -}}
{{- include "cometmq.addresses" (dict "service" (printf "%s-names" .Release.Name) "namespace" .Release.Namespace "replicas" .Values.nameServer.replicas "port" 9876) -}}
{{- end }}

{{- define "cometmq.controllers" -}}
{{- include "cometmq.addresses" (dict "service" (printf "%s-controller" .Release.Name) "namespace" .Release.Namespace "replicas" .Values.controller.replicas "port" 9877) -}}
{{- end }}

{{- define "cometmq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "cometmq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}
