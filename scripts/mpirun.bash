# Sourced by the scripts that start mpirun. Ranks may outnumber cores, root may start them, what a rank has said itself
# is not told again at length, and no network is looked for, as all ranks are on this machine. Open MPI 4 and 5 have
# different options for this, and different variables too; MPICH's mpirun needs none and reads none.
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_orte_execute_quiet=1 OMPI_MCA_btl=${OMPI_MCA_btl:-self,vader}
if ((EUID == 0)); then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
