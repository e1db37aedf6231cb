"""Entry point on a node: ``python3 start.py DEPLOYMENT RUN``, beside the package ``graftwork``."""

from graftwork.launch.node.keeper import main

raise SystemExit(main())
