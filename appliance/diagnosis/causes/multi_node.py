"""Several hosts: Ray, and finding each other."""

from appliance.diagnosis.cause import Cause

CAUSES = (
    Cause(
        family="multi-node",
        name="not-enough-gpus-in-cluster",
        signs=("placement group", "exceeds the total number of available gpus",
               "no available node types can fulfill", "cannot provide a placement group", "has no gpu available",
               "total number of available", "available resources:", "not enough resources to allocate"),
        pattern=r"placement group|exceeds the total|no available node|has no \w{1,60} available|not enough resources",
        summary="The cluster does not have enough free GPUs for the profile, or not on the right hosts.",
        fix="Check that every host has joined and shows its GPUs, or reduce tensor-parallel-size times "
        "pipeline-parallel-size to their number.",
        look="ray status",
        line=True,
    ),
    Cause(
        family="multi-node",
        name="ray-not-running",
        signs=("could not find any running ray instance", "ray is not initialized", "failed to connect to gcs",
               "ray cluster", "failed to import ray", "ray is not installed", "raylet", "gcs_server",
               "no module named 'ray'", "ray head", "ray instance", "unable to connect to gcs", "gcs_rpc_client",
               "ray client", "ray nodes", "ray workers", "rayworkererror", "ray.init", "ray compiled graph",
               "pip install ray"),
        pattern=r"not (?:find|found|initiali[sz]ed|installed|started|ready|connect)|could not|fail|unable|died"
        r"|timed? ?out|no module|mismatch|install|unexpectedly",
        summary="Ray is not running, cannot be reached, or lost a host.",
        fix="Start Ray on the head node and let every host join before the engine starts, with the same Ray and "
        "Python version everywhere.",
        look="ray status",
        line=True,
    ),
    Cause(
        family="multi-node",
        name="ray-version-mismatch",
        signs=("version mismatch", "the cluster was started with"),
        pattern=r"cluster was started with|ray: |python: ",
        summary="The hosts run different versions of Ray or Python.",
        fix="Use the same image on every host.",
        line=True,
    ),
    Cause(
        family="multi-node",
        name="host-address",
        signs=("every node should have a unique ip", "vllm_host_ip", "unique ip address", "node-rank", "nnodes",
               "master-addr", "master_addr", "dist-init-addr"),
        pattern=r"unique ip|HOST_IP|must|invalid|not |fail|require",
        summary="The hosts cannot find each other at the configured addresses.",
        fix="Set VLLM_HOST_IP to each host's own address, and give all hosts the same head address and number of "
        "hosts.",
        look="ip -brief address",
    ),
    Cause(
        family="multi-node",
        name="rendezvous-failed",
        signs=("distnetworkerror", "diststoreerror", "client socket has failed to connect",
               "client socket has timed out", "tcpstore", "rendezvous", "connectfullmesh", "timed out after",
               "clients joined", "wait timeout", "socket timeout", "failed to connect to", "no route to host"),
        pattern=r"(?:dist\w{1,60}error|client socket|tcpstore|rendezvous|connectfullmesh|clients joined"
        r"|failed to connect to.{0,80}:\d{2,5}|no route to host)",
        summary="The processes did not find each other over the network in time.",
        fix="Check that every host can reach the head's address and port, and that no firewall blocks it; name the "
        "interface with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME.",
    ),
    Cause(
        family="multi-node",
        name="peer-silent",
        signs=("for send operation to complete", "for recv operation to complete", "timeout caused pair closure"),
        details=r"timed out waiting (?P<ms>\d{1,9})ms",
        summary="A process of the engine waited in vain for another over the network (Gloo, {ms} ms).",
        fix="Name the interface over which the processes reach each other with GLOO_SOCKET_IFNAME; on one machine it "
        "is lo. If they do reach each other, one of them hangs: read what each logged last.",
        look="ip -brief address",
        line=True,
    ),
    Cause(
        family="multi-node",
        name="ray-worker-lost",
        signs=("actordiederror", "rayactorerror", "the actor died unexpectedly", "workercrashederror", "nodediederror",
               "node_died", "worker exit type", "raytaskerror"),
        summary="A worker of the Ray cluster ended.",
        fix="Read that worker's log on its host (under /tmp/ray/session_latest/logs): its first error is the cause.",
        look="ls -t /tmp/ray/session_latest/logs | head",
        vague=True,
    ),
)  # fmt: skip
