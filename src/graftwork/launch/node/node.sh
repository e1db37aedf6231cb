
# One task a node. site.sh, if you put one beside this file, is read first: module load, a virtual environment.
folder=$(dirname "$0")
if [ -r "$folder/site.sh" ]; then
  . "$folder/site.sh"
fi
exec "$python" -EsB "$folder/lib/start.py" "$folder/deployment.json" "$1"
