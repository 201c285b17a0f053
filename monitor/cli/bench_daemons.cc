#include "monitor/cli/bench_daemons.h"

#include "monitor/cli/cluster.h"
#include "monitor/cli/daemon_call.h"

namespace tensorlane::cli {

namespace {

class ClusterDaemons : public BenchDaemons {
 public:
  ClusterDaemons(std::unique_ptr<Cluster> cluster, const process::Processes& processes)
      : cluster_(std::move(cluster)), processes_(processes) {}

  std::vector<std::pair<std::string, std::string>> environment(int rank) const override {
    return cluster_->environment(rank);
  }

  std::vector<pid_t> pids() const override {
    std::vector<pid_t> pids;
    for (const std::size_t child : cluster_->daemons()) pids.push_back(processes_.pid(child));
    return pids;
  }

  Result<std::map<std::string, std::uint64_t>> bytes_sent() override {
    std::map<std::string, std::uint64_t> sum;
    for (const fabric::Host& host : cluster_->fabric().hosts) {
      const std::string socket = cluster_->socket(host.name);
      TL_ASSIGN_OR_RETURN(const std::string text, daemon_status(socket));
      TL_ASSIGN_OR_RETURN(const auto sent, bytes_sent_of_status(text, socket));
      for (const auto& [transport, bytes] : sent) sum[transport] += bytes;
    }
    return sum;
  }

 private:
  std::unique_ptr<Cluster> cluster_;
  const process::Processes& processes_;
};

}  // namespace

Result<std::map<std::string, std::uint64_t>> bytes_sent_of_status(const std::string& status, const std::string& where) {
  const nlohmann::json parsed = nlohmann::json::parse(status, nullptr, false);
  const Status bad(Code::kVersionMismatch, "the daemon's status does not say what each transport has sent", where,
                   "install the same version of the command and the daemon");
  if (!parsed.is_object() || !parsed.contains("transports") || !parsed["transports"].is_object()) return bad;
  std::map<std::string, std::uint64_t> sent;
  for (const auto& [name, transport] : parsed["transports"].items()) {
    if (!transport.is_object() || !transport.contains("bytes_sent") || !transport["bytes_sent"].is_number_unsigned())
      return bad;
    sent[name] = transport["bytes_sent"];
  }
  return sent;
}

Result<std::unique_ptr<BenchDaemons>> start_bench_daemons(const BenchOptions& options, process::Processes& processes) {
  ClusterOptions cluster;
  cluster.hosts = options.layout.hosts;
  cluster.ranks_per_host = options.layout.ranks / options.layout.hosts;
  cluster.first_port = options.first_port;
  cluster.settings = {{"pattern", options.pattern}};
  cluster.data_protection = options.protection;
  TL_RETURN_IF_ERROR(add_settings(options.settings, &cluster));
  TL_ASSIGN_OR_RETURN(auto started, Cluster::start(cluster, processes));
  return std::unique_ptr<BenchDaemons>(std::make_unique<ClusterDaemons>(std::move(started), processes));
}

}  // namespace tensorlane::cli
