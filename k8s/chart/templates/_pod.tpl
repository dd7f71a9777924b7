{{- /* What the head and every worker have in common; indented by the caller. */ -}}
{{- define "pagoda.security" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
{{- end }}

{{- define "pagoda.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
sysctls:
  - {name: net.ipv4.ip_local_port_range, value: 42000 60999}
{{- end }}

{{- define "pagoda.rayPorts" -}}
object-store-memory: "134217728"
object-manager-port: "8076"
node-manager-port: "8077"
dashboard-agent-grpc-port: "8078"
runtime-env-agent-port: "8079"
dashboard-agent-listen-port: "52365"
min-worker-port: "10100"
max-worker-port: "10999"
{{- end }}

{{- define "pagoda.environment" -}}
envFrom: [{configMapRef: {name: pagoda-ray-environment}}]
env:
  - name: PAGODA_API_KEY
    valueFrom:
      secretKeyRef: {name: {{ .Values.secrets.apiKeys }}, key: api-keys}
  - name: REDIS_URL
    valueFrom:
      secretKeyRef: {name: {{ .Values.secrets.valkeyBlocks }}, key: url}
  - {name: RAY_REDIS_CA_CERT, value: /etc/pagoda/valkey/ca.crt}
{{- end }}

{{- define "pagoda.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: peer-tls, mountPath: /etc/pagoda/peers, readOnly: true}
- {name: valkey-ca, mountPath: /etc/pagoda/valkey, readOnly: true}
{{- end }}

{{- define "pagoda.volumes" -}}
- name: tmp
  emptyDir: {}
- name: peer-tls
  secret: {secretName: {{ .Values.secrets.peerTls }}, defaultMode: 288}
- name: valkey-ca
  secret:
    secretName: {{ .Values.secrets.valkeyTls }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}

{{- define "pagoda.liveness" -}}
httpGet: {path: /api/healthz, port: 52365}
initialDelaySeconds: 60
periodSeconds: 10
timeoutSeconds: 5
failureThreshold: 12
{{- end }}

{{- define "pagoda.rayEnvironmentChecksum" -}}
{{- (.Files.Get "files/base/configmap-ray-environment.yaml" | fromYaml).data | toJson | sha256sum | trunc 16 -}}
{{- end }}

{{- define "pagoda.serveConfig" -}}
{{- $application := dict "name" "pagoda" "route_prefix" "/" "import_path" "cluster.app:build_app" }}
{{- $_ := set $application "args" .Values.serve.args }}
{{- $_ := set $application "deployments" .Values.serve.deployments }}
{{- $http := dict "host" "0.0.0.0" "port" 8000 }}
{{- dict "proxy_location" "EveryNode" "http_options" $http "applications" (list $application) | toYaml }}
{{- end }}
