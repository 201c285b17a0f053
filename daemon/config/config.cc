#include "daemon/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <span>

#include "common/fabric/yaml_reader.h"
#include "common/files/careful.h"

namespace tensorlane::config {
namespace {

using fabric::Mapping;

constexpr BitsPerSecond kLowestControlRate{1'000'000};  // some thousand frames a second
constexpr Bytes kSmallestBatch = kib(1);
constexpr Bytes kLargestBatch = mib(64);
constexpr Bytes kLargestFabricFile = mib(16);
constexpr std::size_t kKeyLength = 40;  // of a CURVE key in Z85

constexpr auto kKeys = std::to_array<std::string_view>({"fabric",
                                                        "host",
                                                        "secret_key_file",
                                                        "socket",
                                                        "metrics",
                                                        "timeline",
                                                        "record",
                                                        "record_limit",
                                                        "probe_marks",
                                                        "detection",
                                                        "join_timeout",
                                                        "late_after",
                                                        "late_error",
                                                        "pattern",
                                                        "batch",
                                                        "priorities",
                                                        "tags",
                                                        "payload_crc",
                                                        "users",
                                                        "max_sessions",
                                                        "arena_limit",
                                                        "memory_limit",
                                                        "memory_keep_free",
                                                        "staging",
                                                        "slice_elements",
                                                        "spin",
                                                        "lanes",
                                                        "workers",
                                                        "cpu",
                                                        "job_limits",
                                                        "control_rate",
                                                        "transport",
                                                        "rdma",
                                                        "dpdk",
                                                        "on_lost_flow",
                                                        "search_thresholds",
                                                        "urgency",
                                                        "ordering",
                                                        "ordering_concurrent",
                                                        "network_model",
                                                        "max_pending",
                                                        "users_guaranteed",
                                                        "max_tensors",
                                                        "timeline_limit",
                                                        "spans",
                                                        "spans_on_failure",
                                                        "log_level"});
constexpr std::array<std::string_view, 3> kLimitKeys = {"class", "rate", "burst"};

std::string beside(const std::string& config_path, const std::string& path) {
  return (std::filesystem::path(config_path).parent_path() / path).string();
}

Result<std::string> read_secret_key(const std::string& path) {
  TL_ASSIGN_OR_RETURN(std::string key, files::read(path, "the secret key", files::Care::kKey, kib(4)));
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
  if (key.size() != kKeyLength) {
    return Status(Code::kInvalidArgument, fmt::format("the secret key has {} characters", key.size()), path,
                  "expected a CURVE key in Z85: 40 characters");
  }
  return key;
}

// Sets *target from the file where the key is there.
template <typename T, typename Get>
Status optional_value(const Mapping& map, std::string_view key, T* target, Get get) {
  if (!map.has(key)) return {};
  auto value = get(key);
  if (!value.ok()) return value.status();
  *target = std::move(*value);
  return {};
}

Status optional_duration(const Mapping& map, std::string_view key, Duration* target) {
  if (!map.has(key)) return {};
  TL_ASSIGN_OR_RETURN(const std::string text, map.text(key));
  Result<Duration> duration = fabric::parse_duration(text);
  if (!duration.ok()) return map.wrong(key, duration.status().fix());
  *target = *duration;
  return {};
}

// The mapping that stands at a key.
Result<Mapping> inner(const Mapping& map, std::string_view key, std::span<const std::string_view> keys) {
  if (!map.get(key).IsMap()) return map.wrong(key, "expected a mapping with " + fabric::join(keys));
  return Mapping::open(map.path(), map.get(key), fmt::format("'{}'", key), keys);
}

// A list of words.
Result<std::vector<std::string>> texts(const Mapping& map, std::string_view key) {
  TL_ASSIGN_OR_RETURN(const YAML::Node list, map.list(key));
  std::vector<std::string> texts;
  for (const YAML::Node& node : list) {
    if (!node.IsScalar() || node.Scalar().empty()) return map.wrong(key, "expected a list of texts");
    texts.push_back(node.Scalar());
  }
  return texts;
}

// A size of memory or of a file: `4` was meant to be GiB.
Result<Bytes> size_with_unit(const Mapping& map, std::string_view key) {
  TL_ASSIGN_OR_RETURN(const std::string text, map.text(key));
  if (text.find_first_not_of("0123456789. ") == text.npos)
    return map.wrong(key, "expected a size with its unit, such as '256 KiB' or '4 GiB'");
  return map.bytes(key);
}

Status read_pattern(const Mapping& map, std::optional<protocol::Pattern>* pattern) {
  if (!map.has("pattern")) return {};
  TL_ASSIGN_OR_RETURN(const std::string text, map.text("pattern"));
  *pattern = protocol::pattern_from_name(text);
  if (text == "auto" || (*pattern && protocol::is_selectable(**pattern))) return {};
  return map.wrong("pattern", "expected ring, halving_doubling, tree, parameter_server, shuffle or auto");
}

Status read_batch(const Mapping& map, DaemonConfig* config) {
  if (!map.has("batch")) return {};
  TL_ASSIGN_OR_RETURN(const std::string text, map.text("batch"));
  config->batch_automatic = text == "auto";
  config->batch = Bytes();
  if (text == "off" || config->batch_automatic) return {};
  const Result<Bytes> longest = size_with_unit(map, "batch");
  if (!longest.ok() || *longest < kSmallestBatch || *longest > kLargestBatch)
    return map.wrong("batch", "expected off, auto, or a size from 1 KiB to 64 MiB, e.g. 256 KiB");
  config->batch = *longest;
  return {};
}

Status read_network_model(const Mapping& map, DaemonConfig::NetworkModel* target) {
  if (!map.has("network_model")) return {};
  constexpr std::array<std::string_view, 5> keys = {"latency", "bandwidth", "message_cost", "incast_percent",
                                                    "sum_rate"};
  TL_ASSIGN_OR_RETURN(const Mapping model, inner(map, "network_model", keys));
  const auto rate = [&](std::string_view key) { return model.rate(key); };
  TL_RETURN_IF_ERROR(optional_duration(model, "latency", &target->latency));
  TL_RETURN_IF_ERROR(optional_value(model, "bandwidth", &target->bandwidth, rate));
  TL_RETURN_IF_ERROR(optional_duration(model, "message_cost", &target->message_cost));
  const auto percent = [&](std::string_view key) { return model.number(key, 0, 1000); };
  TL_RETURN_IF_ERROR(optional_value(model, "incast_percent", &target->incast_percent, percent));
  return optional_value(model, "sum_rate", &target->sum_rate, rate);
}

Status read_urgency(const Mapping& map, DaemonConfig* config) {
  if (!map.has("urgency")) return {};
  TL_ASSIGN_OR_RETURN(const std::string text, map.text("urgency"));
  if (text != "registered" && text != "observed") return map.wrong("urgency", "expected registered or observed");
  config->observe_order = text == "observed";
  if (config->observe_order && config->search_thresholds)
    return map.wrong("urgency", "observed goes with the fabric's thresholds: leave out 'search_thresholds'");
  return {};
}

Status read_ordering(const Mapping& map, DaemonConfig* config) {
  if (map.has("ordering")) {
    TL_ASSIGN_OR_RETURN(const std::string text, map.text("ordering"));
    const std::optional<protocol::Ordering> named = protocol::ordering_from_name(text);
    if (!named) return map.wrong("ordering", "expected tagged, funnel, concurrent, chained, counters or negotiated");
    config->ordering = *named;
  }
  if (!map.has("ordering_concurrent")) return {};
  if (config->ordering != protocol::Ordering::kConcurrent)
    return map.wrong("ordering_concurrent", "it counts with 'ordering: concurrent' only");
  TL_ASSIGN_OR_RETURN(const std::uint64_t count, map.number("ordering_concurrent", 1, 1 << 20));
  config->ordering_concurrent = static_cast<std::uint32_t>(count);
  return {};
}

Status read_rdma(const Mapping& map, DaemonConfig* config) {
  if (!map.has("rdma")) return {};
  constexpr std::array<std::string_view, 6> keys = {"device", "port", "gid_index", "queue_pairs", "connect", "retry"};
  TL_ASSIGN_OR_RETURN(const Mapping rdma, inner(map, "rdma", keys));
  const auto number = [&](std::uint64_t low, std::uint64_t high) {
    return [&rdma, low, high](std::string_view key) { return rdma.number(key, low, high); };
  };
  std::uint64_t port = config->rdma.port, gid = 0, pairs = config->rdma.queue_pairs;
  TL_RETURN_IF_ERROR(
      optional_value(rdma, "device", &config->rdma.device, [&](std::string_view key) { return rdma.text(key); }));
  TL_RETURN_IF_ERROR(optional_value(rdma, "port", &port, number(1, 255)));
  TL_RETURN_IF_ERROR(optional_value(rdma, "gid_index", &gid, number(0, 255)));
  TL_RETURN_IF_ERROR(optional_value(rdma, "queue_pairs", &pairs, number(1, 16)));
  for (std::string_view key : {"device", "gid_index"}) {
    if (rdma.has(key) && config->self().rails() > 1)
      return rdma.wrong(key, "expected none on a host of several rails: each has the device of its rdma address");
  }
  TL_RETURN_IF_ERROR(optional_duration(rdma, "retry", &config->rdma.retry));
  const bool resumes = config->on_lost_flow == DaemonConfig::OnLostFlow::kResume;
  if (rdma.has("retry") && (config->rdma.retry < milliseconds(100) || !resumes)) {
    return rdma.wrong("retry", resumes ? "expected at least 100 ms"
                                       : "expected 'on_lost_flow: resume' beside it: without, only the silence of a "
                                         "host for longer than `detection` ends a job");
  }
  config->rdma.port = static_cast<std::uint8_t>(port);
  if (rdma.has("gid_index")) config->rdma.gid_index = static_cast<int>(gid);
  config->rdma.queue_pairs = static_cast<std::uint8_t>(pairs);
  if (rdma.has("connect")) {
    TL_ASSIGN_OR_RETURN(const std::string text, rdma.text("connect"));
    if (text != "verbs" && text != "cm") return rdma.wrong("connect", "expected verbs or cm");
    config->rdma.connect_by_cm = text == "cm";
  }
  return {};
}

// A list with a value for each rail, or nothing.
Status read_by_rail(const Mapping& map, std::string_view key, const DaemonConfig& config,
                    std::vector<std::string>* target) {
  TL_RETURN_IF_ERROR(optional_value(map, key, target, [&](std::string_view k) { return texts(map, k); }));
  if (target->empty() || target->size() == config.self().rails()) return {};
  return map.wrong(
      key, fmt::format("expected one for each of the {} rails of host '{}'", config.self().rails(), config.host));
}

Status read_dpdk(const Mapping& map, DaemonConfig* config) {
  const bool wanted = config->transport == DaemonConfig::Transport::kDpdk;
  if (!map.has("dpdk"))
    return wanted ? map.wrong("transport", "expected 'dpdk: {devices: [...]}' beside it") : Status();
  constexpr std::array<std::string_view, 7> keys = {"devices",    "networks", "gateways", "eal",
                                                    "neighbours", "port",     "vlan"};
  TL_ASSIGN_OR_RETURN(const Mapping dpdk, inner(map, "dpdk", keys));
  DaemonConfig::Dpdk& target = config->dpdk;
  TL_RETURN_IF_ERROR(read_by_rail(dpdk, "devices", *config, &target.devices));
  if (target.devices.empty()) return dpdk.wrong("devices", "expected the devices of the rails");
  TL_RETURN_IF_ERROR(read_by_rail(dpdk, "networks", *config, &target.networks));
  TL_RETURN_IF_ERROR(read_by_rail(dpdk, "gateways", *config, &target.gateways));
  if (!target.gateways.empty() && target.networks.empty())
    return dpdk.wrong("gateways", "expected 'networks' beside them: what is outside of these goes there");
  const auto list = [&dpdk](std::string_view key) { return texts(dpdk, key); };
  TL_RETURN_IF_ERROR(optional_value(dpdk, "eal", &target.eal, list));
  TL_RETURN_IF_ERROR(optional_value(dpdk, "neighbours", &target.neighbours, list));
  std::uint64_t port = target.port, vlan = 0;
  TL_RETURN_IF_ERROR(
      optional_value(dpdk, "port", &port, [&](std::string_view key) { return dpdk.number(key, 1, 65535); }));
  TL_RETURN_IF_ERROR(
      optional_value(dpdk, "vlan", &vlan, [&](std::string_view key) { return dpdk.number(key, 0, 4094); }));
  target.port = static_cast<std::uint16_t>(port);
  if (dpdk.has("vlan")) target.vlan = static_cast<int>(vlan);
  return {};
}

Status read_transport(const Mapping& map, DaemonConfig* config) {
  using Transport = DaemonConfig::Transport;
  if (map.has("on_lost_flow")) {
    TL_ASSIGN_OR_RETURN(const std::string text, map.text("on_lost_flow"));
    if (text != "resume" && text != "abort") return map.wrong("on_lost_flow", "expected resume or abort");
    config->on_lost_flow = text == "resume" ? DaemonConfig::OnLostFlow::kResume : DaemonConfig::OnLostFlow::kAbort;
  }
  if (map.has("transport")) {
    TL_ASSIGN_OR_RETURN(const std::string text, map.text("transport"));
    const auto known = std::ranges::find(kTransportNames, text);
    if (known == kTransportNames.end()) return map.wrong("transport", "expected tcp, rdma, dpdk or auto");
    config->transport = static_cast<Transport>(known - kTransportNames.begin());
  }
  const std::string name(transport_name(config->transport));
  const bool named = config->transport == Transport::kRdma || config->transport == Transport::kDpdk;
  if (named && !config->self().addresses.contains(name)) {
    return map.wrong("transport", fmt::format("expected an address for {} of host '{}' in {}: 'addresses: {{tcp: "
                                              "ADDRESS, {}: ADDRESS}}'",
                                              name, config->host, config->fabric_path, name));
  }
  if (config->transport == Transport::kRdma && config->fabric.data_protection != DataProtection::kNone) {
    return map.wrong("transport",
                     fmt::format("expected tcp or auto, as RDMA cannot protect data and {} has "
                                 "'data_protection: {}'; or leave that out on every host",
                                 config->fabric_path, data_protection_name(config->fabric.data_protection)));
  }
  TL_RETURN_IF_ERROR(read_rdma(map, config));
  return read_dpdk(map, config);
}

Status read_users(const Mapping& map, std::vector<std::uint32_t>* users) {
  if (!map.has("users")) return {};
  TL_ASSIGN_OR_RETURN(const YAML::Node list, map.list("users"));
  for (const YAML::Node& node : list) {
    std::uint32_t uid = 0;
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), uid);
    if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
      return {Code::kInvalidArgument, fmt::format("'{}' in 'users' is no user id", text),
              fabric::place(map.path(), node), "expected numbers, e.g. [1000, 1001]"};
    }
    users->push_back(uid);
  }
  return {};
}

// Without one of its own a burst is what the rate brings in 100 ms, and lets an operation pass.
Bytes default_burst(BitsPerSecond rate) {
  return std::clamp(Bytes(bytes_per_second(rate) / 10), kMaxOperation, kMaxBurst);
}

Status read_job_limits(const Mapping& map, DaemonConfig* config) {
  if (!map.has("job_limits")) return {};
  TL_ASSIGN_OR_RETURN(const YAML::Node list, map.list("job_limits"));
  const std::vector<fabric::TrafficClass>& classes = config->fabric.classes.data;
  for (const YAML::Node& node : list) {
    TL_ASSIGN_OR_RETURN(const Mapping limit, Mapping::open(map.path(), node, "a limit of 'job_limits'", kLimitKeys));
    TL_ASSIGN_OR_RETURN(const std::string name, limit.name("class"));
    const auto found = std::ranges::find(classes, name, &fabric::TrafficClass::name);
    if (found == classes.end() || found + 1 == classes.end()) {
      std::vector<std::string_view> names;
      for (const fabric::TrafficClass& cls : std::span(classes).first(classes.size() - 1)) names.push_back(cls.name);
      return limit.wrong("class", fmt::format("expected a class above the lowest: {}", fabric::join(names)));
    }
    RateLimit& target = config->job_limits[static_cast<std::size_t>(found - classes.begin())];
    if (target.limited()) return limit.wrong("class", "expected each class once");
    TL_ASSIGN_OR_RETURN(target.rate, limit.rate("rate"));
    if (target.rate > kMaxLimitedRate) return limit.wrong("rate", "expected at most 10 Tbit/s");
    target.burst = default_burst(target.rate);
    TL_RETURN_IF_ERROR(optional_value(limit, "burst", &target.burst,
                                      [&limit](std::string_view key) { return size_with_unit(limit, key); }));
    if (target.burst > kMaxBurst) return limit.wrong("burst", "expected at most 1 GiB");
  }
  return {};
}

Status read_control_rate(const Mapping& map, DaemonConfig* config) {
  if (!map.has("control_rate")) return {};
  TL_ASSIGN_OR_RETURN(config->control_rate, map.rate("control_rate"));
  if (*config->control_rate < kLowestControlRate) return map.wrong("control_rate", "expected at least 1 Mbit/s");
  if (*config->control_rate > kMaxLimitedRate) return map.wrong("control_rate", "expected at most 10 Tbit/s");
  return {};
}

Status read_numbers(const Mapping& map, DaemonConfig* config) {
  const auto number = [&](std::uint64_t low, std::uint64_t high) {
    return [&map, low, high](std::string_view key) { return map.number(key, low, high); };
  };
  const auto flag = [&](std::string_view key) { return map.flag(key); };
  const auto bytes = [&](std::string_view key) { return size_with_unit(map, key); };
  std::uint64_t slice = 0, cpu = 0, sessions = config->max_sessions, pending = config->max_pending,
                guaranteed = config->users_guaranteed, tensors = config->max_tensors, lanes = config->lanes,
                workers = 0;
  TL_RETURN_IF_ERROR(optional_value(map, "slice_elements", &slice, number(1024, 1u << 20)));
  TL_RETURN_IF_ERROR(optional_value(map, "cpu", &cpu, number(0, 4095)));
  TL_RETURN_IF_ERROR(optional_value(map, "lanes", &lanes, number(1, kMaxLanes)));
  TL_RETURN_IF_ERROR(optional_value(map, "workers", &workers, number(0, kMaxWorkers)));
  TL_RETURN_IF_ERROR(optional_value(map, "max_sessions", &sessions, number(1, 65536)));
  TL_RETURN_IF_ERROR(optional_value(map, "max_pending", &pending, number(1, 4096)));
  TL_RETURN_IF_ERROR(optional_value(map, "max_tensors", &tensors, number(1, 1u << 24)));
  TL_RETURN_IF_ERROR(optional_value(map, "users_guaranteed", &guaranteed, number(0, 100)));
  TL_RETURN_IF_ERROR(optional_value(map, "priorities", &config->priorities, flag));
  TL_RETURN_IF_ERROR(optional_value(map, "tags", &config->tags, flag));
  TL_RETURN_IF_ERROR(optional_value(map, "search_thresholds", &config->search_thresholds, flag));
  TL_RETURN_IF_ERROR(optional_value(map, "payload_crc", &config->payload_crc, flag));
  TL_RETURN_IF_ERROR(optional_value(map, "arena_limit", &config->arena_limit, bytes));
  TL_RETURN_IF_ERROR(optional_value(map, "memory_limit", &config->memory_limit, bytes));
  TL_RETURN_IF_ERROR(optional_value(map, "memory_keep_free", &config->memory_keep_free, bytes));
  TL_RETURN_IF_ERROR(optional_value(map, "staging", &config->staging, bytes));
  config->lanes = static_cast<std::uint32_t>(lanes);
  config->workers = static_cast<std::uint32_t>(workers);
  config->slice_elements = static_cast<std::uint32_t>(slice);
  config->max_sessions = static_cast<std::uint32_t>(sessions);
  config->max_pending = static_cast<std::uint32_t>(pending);
  config->max_tensors = static_cast<std::uint32_t>(tensors);
  config->users_guaranteed = static_cast<std::uint32_t>(guaranteed);
  if (map.has("cpu")) config->cpu = static_cast<int>(cpu);
  return {};
}

// The last ones, in memory and of jobs that fail.
Status read_spans(const Mapping& map, DaemonConfig* config) {
  const auto memory = [&](std::string_view key) -> Result<Bytes> {
    TL_ASSIGN_OR_RETURN(const std::string text, map.text(key));
    return text == "off" ? Result<Bytes>(Bytes(0)) : size_with_unit(map, key);
  };
  TL_RETURN_IF_ERROR(optional_value(map, "spans", &config->spans, memory));
  if (config->spans.value > 0 && (config->spans < mib(1) || config->spans > mib(1024)))
    return map.wrong("spans", "expected off, or a size from 1 MiB to 1 GiB");
  if (!map.has("spans_on_failure")) return {};
  TL_ASSIGN_OR_RETURN(const std::string folder, map.text("spans_on_failure"));
  config->spans_on_failure = folder == "off" ? std::string() : beside(config->path, folder);
  return {};
}

Status read_timeline(const Mapping& map, DaemonConfig* config) {
  const auto text = [&](std::string_view key) { return map.text(key); };
  const auto bytes = [&](std::string_view key) { return size_with_unit(map, key); };
  TL_RETURN_IF_ERROR(optional_value(map, "timeline", &config->timeline, text));
  TL_RETURN_IF_ERROR(optional_value(map, "timeline_limit", &config->timeline_limit, bytes));
  if (!config->timeline.empty()) config->timeline = beside(config->path, config->timeline);
  if (config->timeline_limit < mib(1)) return map.wrong("timeline_limit", "expected at least 1 MiB");
  return read_spans(map, config);
}

Status read_log_level(const Mapping& map, DaemonConfig::LogLevel* level) {
  if (!map.has("log_level")) return {};
  constexpr std::array<std::string_view, 4> words = {"debug", "info", "warning", "error"};
  TL_ASSIGN_OR_RETURN(const std::size_t place, map.one_of("log_level", words));
  *level = static_cast<DaemonConfig::LogLevel>(place);
  return {};
}

// What goes into the engines, for `tensorlane replay`.
Status read_record(const Mapping& map, DaemonConfig* config) {
  TL_RETURN_IF_ERROR(
      optional_value(map, "record", &config->record, [&](std::string_view key) { return map.text(key); }));
  TL_RETURN_IF_ERROR(optional_value(map, "record_limit", &config->record_limit,
                                    [&](std::string_view key) { return size_with_unit(map, key); }));
  if (!config->record.empty()) config->record = beside(config->path, config->record);
  if (config->record_limit < mib(1)) return map.wrong("record_limit", "expected at least 1 MiB");
  return {};
}

Status read_durations(const Mapping& map, DaemonConfig* config) {
  TL_RETURN_IF_ERROR(optional_duration(map, "detection", &config->detection));
  TL_RETURN_IF_ERROR(optional_duration(map, "join_timeout", &config->join_timeout));
  TL_RETURN_IF_ERROR(optional_duration(map, "late_after", &config->late_after));
  TL_RETURN_IF_ERROR(optional_duration(map, "late_error", &config->late_error));
  TL_RETURN_IF_ERROR(optional_duration(map, "spin", &config->spin));
  if (config->detection < milliseconds(200)) return map.wrong("detection", "expected at least 200 ms");
  if (config->late_error >= config->late_after) return {};
  if (map.has("late_error"))
    return map.wrong("late_error", fmt::format("expected at least late_after, {} s", to_seconds(config->late_after)));
  return map.wrong("late_after", fmt::format("expected at most late_error, {} s, or a longer late_error beside it",
                                             to_seconds(config->late_error)));
}

// Every second is as often as it makes sense: a receiver may take as long.
Status read_probe_marks(const Mapping& map, DaemonConfig* config) {
  if (!map.has("probe_marks")) return {};
  TL_ASSIGN_OR_RETURN(const std::string text, map.text("probe_marks"));
  config->probe_marks = Duration(0);
  if (text == "off") return {};
  TL_RETURN_IF_ERROR(optional_duration(map, "probe_marks", &config->probe_marks));
  if (config->probe_marks < seconds(1) || config->probe_marks > seconds(86400))
    return map.wrong("probe_marks", "expected off, or a time from 1 s to a day");
  return {};
}

Status read_identity(const Mapping& map, DaemonConfig* config) {
  TL_ASSIGN_OR_RETURN(const std::string fabric_path, map.text("fabric"));
  config->fabric_path = beside(config->path, fabric_path);
  TL_ASSIGN_OR_RETURN(const std::string text, files::read(config->fabric_path, "the fabric file",
                                                          files::Care::kConfiguration, kLargestFabricFile));
  TL_ASSIGN_OR_RETURN(config->fabric, fabric::parse(text, config->fabric_path));
  TL_ASSIGN_OR_RETURN(config->host, map.name("host"));
  if (config->fabric.find_host(config->host) == nullptr) {
    std::vector<std::string_view> names;
    for (const fabric::Host& host : config->fabric.hosts) names.push_back(host.name);
    return map.wrong("host", fmt::format("expected a host of {}: {}", config->fabric_path, fabric::join(names)));
  }
  if (map.has("secret_key_file")) {
    TL_ASSIGN_OR_RETURN(const std::string key_path, map.text("secret_key_file"));
    config->secret_key_path = beside(config->path, key_path);
    TL_ASSIGN_OR_RETURN(config->secret_key, read_secret_key(config->secret_key_path));
  } else if (config->fabric.hosts.size() > 1) {
    return {Code::kInvalidArgument, "no 'secret_key_file', but the fabric has more than one host", map.place(),
            "name the file with this host's CURVE secret key"};
  }
  return {};
}

}  // namespace

Result<DaemonConfig> load(const std::string& path) {
  TL_ASSIGN_OR_RETURN(const std::string text,
                      files::read(path, "the daemon's configuration", files::Care::kConfiguration));
  YAML::Node document;
  try {
    document = YAML::Load(text);
  } catch (const YAML::Exception& e) {
    return Status(Code::kInvalidArgument, fmt::format("this is not YAML: {}", e.msg),
                  fmt::format("{}:{}", path, e.mark.line + 1),
                  "correct the syntax there, or what was left open before it");
  }
  TL_ASSIGN_OR_RETURN(const Mapping map, Mapping::open(path, document, "the daemon's configuration", kKeys));
  DaemonConfig config;
  config.path = path;
  for (const auto& entry : document) {
    const std::string& key = entry.first.Scalar();
    config.written[key] = YAML::Dump(entry.second);
    config.places[key] = map.place(key);
  }
  const auto as_text = [&](std::string_view key) { return map.text(key); };
  TL_RETURN_IF_ERROR(read_identity(map, &config));
  TL_RETURN_IF_ERROR(optional_value(map, "socket", &config.socket, as_text));
  config.socket = beside(path, config.socket);
  TL_RETURN_IF_ERROR(optional_value(map, "metrics", &config.metrics, as_text));
  TL_RETURN_IF_ERROR(read_timeline(map, &config));
  TL_RETURN_IF_ERROR(read_log_level(map, &config.log_level));
  TL_RETURN_IF_ERROR(read_record(map, &config));
  TL_RETURN_IF_ERROR(read_durations(map, &config));
  TL_RETURN_IF_ERROR(read_probe_marks(map, &config));
  TL_RETURN_IF_ERROR(read_pattern(map, &config.pattern));
  TL_RETURN_IF_ERROR(read_batch(map, &config));
  TL_RETURN_IF_ERROR(read_ordering(map, &config));
  TL_RETURN_IF_ERROR(read_network_model(map, &config.network_model));
  TL_RETURN_IF_ERROR(read_transport(map, &config));
  TL_RETURN_IF_ERROR(read_users(map, &config.users));
  TL_RETURN_IF_ERROR(read_numbers(map, &config));
  TL_RETURN_IF_ERROR(read_urgency(map, &config));
  TL_RETURN_IF_ERROR(read_job_limits(map, &config));
  TL_RETURN_IF_ERROR(read_control_rate(map, &config));
  return config;
}

}  // namespace tensorlane::config
