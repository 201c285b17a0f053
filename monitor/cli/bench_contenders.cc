#include "monitor/cli/bench_contenders.h"

#include <filesystem>

#include <fmt/format.h>

namespace tensorlane::cli {

namespace {

constexpr char kInstall[] = "install the packages of deploy/packages.apt and build again";

Result<std::string> need(const std::string& name, const std::string& peer) {
  Result<std::string> found = process::find_program(name);
  if (found.ok()) return found;
  return Status(Code::kNotFound, peer + " is left out", "no program " + name, kInstall);
}

Result<Contender> make_gloo(const BenchLayout& layout, const std::string& workers, const std::string& scratch) {
  TL_ASSIGN_OR_RETURN(const std::string worker, need(workers + "/gloo_worker", "gloo"));
  Contender gloo{"gloo", {}, {scratch}};
  for (int rank = 0; rank < layout.ranks; ++rank) {
    process::Spawn how;
    how.argv = {worker};
    how.environment = {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(layout.ranks)}};
    how.prefix = fmt::format("[gloo {}] ", rank);
    gloo.processes.push_back(std::move(how));
  }
  return gloo;
}

Result<Contender> make_mpich(const BenchLayout& layout, const std::string& workers, const std::string&) {
  TL_ASSIGN_OR_RETURN(const std::string worker, need(workers + "/mpich_worker", "mpich"));
  TL_ASSIGN_OR_RETURN(const std::string mpirun, need("mpirun.mpich", "mpich"));
  process::Spawn how;
  how.argv = {mpirun, "-n", std::to_string(layout.ranks), worker};
  how.prefix = "[mpich] ";
  // MPICH's own shared memory off, and that of the UCX below it.
  if (layout.hosts > 1) {
    how.environment = {{"MPIR_CVAR_NOLOCAL", "1"}, {"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "lo"}};
  }
  return Contender{"mpich", {how}, {}};
}

Result<Contender> make_openmpi(const BenchLayout& layout, const std::string& workers, const std::string&) {
  TL_ASSIGN_OR_RETURN(const std::string worker, need(workers + "/openmpi_worker", "openmpi"));
  TL_ASSIGN_OR_RETURN(const std::string mpirun, need("mpirun.openmpi", "openmpi"));
  process::Spawn how;
  how.argv = {mpirun,
              "--allow-run-as-root",
              "--oversubscribe",
              "--mca",
              "pml",
              "ob1",
              "--mca",
              "btl",
              layout.hosts > 1 ? "self,tcp" : "self,vader"};
  // Without this the TCP transport may choose an interface that does not lead back to this machine.
  if (layout.hosts > 1) how.argv.insert(how.argv.end(), {"--mca", "btl_tcp_if_include", "lo"});
  how.argv.insert(how.argv.end(), {"-n", std::to_string(layout.ranks), worker});
  how.prefix = "[openmpi] ";
  return Contender{"openmpi", {how}, {}};
}

struct Peer {
  const char* name;
  Result<Contender> (*make)(const BenchLayout&, const std::string& workers, const std::string& scratch);
};

constexpr Peer kPeers[] = {{"gloo", make_gloo}, {"mpich", make_mpich}, {"openmpi", make_openmpi}};

}  // namespace

std::vector<std::string> peer_names() {
  std::vector<std::string> names;
  for (const Peer& peer : kPeers) names.emplace_back(peer.name);
  return names;
}

std::string worker_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "bench";
}

Result<Contender> make_peer(const std::string& name, const BenchLayout& layout, const std::string& workers,
                            const std::string& scratch) {
  for (const Peer& peer : kPeers) {
    if (name == peer.name) return peer.make(layout, workers, scratch);
  }
  return Status(Code::kInvalidArgument, "unknown peer " + name, "--compare", "give gloo, mpich or openmpi");
}

}  // namespace tensorlane::cli
