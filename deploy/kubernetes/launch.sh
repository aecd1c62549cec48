#!/bin/sh
# Asks for the workers of a run: ASSAYLINE_LAUNCH='deploy/kubernetes/launch.sh $run $workers $gpus'.
# Ends as soon as the Job is made; the flow waits for the workers themselves. WORKERS_YAML is another template.
set -eu
template=${WORKERS_YAML:-$(dirname "$0")/workers.yaml}
case $1 in *[!A-Za-z0-9/._-]*) echo "launch.sh: cannot write the folder $1 into YAML" >&2; exit 1 ;; esac
sed -e "s|__RUN__|$1|" -e "s|__WORKERS__|$2|" -e "s|__GPUS__|$3|" "$template" | kubectl create -f -
