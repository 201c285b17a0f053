// `tensorlane-switch trace`: what every device between two hosts does with a packet, by its configuration.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "common/base/suggestion.h"
#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "switch-config/cli/commands.h"
#include "switch-config/cli/configurations.h"
#include "switch-config/intent/intent.h"
#include "switch-config/intent/treatment.h"
#include "switch-config/policy/policy.h"

namespace tensorlane::switches {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct TraceArguments {
  std::string configs, fabric, from, to;
  unsigned dscp = 0;
  int pcp = -1;
  bool json = false;
};

struct Hop {
  std::string device, in, out;
};

// The switches on a shortest way between two hosts, links in the order of the file; hosts forward nothing.
Result<std::vector<Hop>> path(const fabric::Fabric& fabric, const std::string& from, const std::string& to) {
  struct Step {
    std::string device, in, before, before_out;
  };
  std::map<std::string, std::vector<std::pair<const fabric::Link*, bool>>> links;  // true: from its `from`
  for (const fabric::Link& link : fabric.links) {
    links[link.from].emplace_back(&link, true);
    links[link.to].emplace_back(&link, false);
  }
  std::vector<Step> steps{{from, "", "", ""}};
  std::map<std::string, std::size_t> seen{{from, 0}};
  for (std::size_t i = 0; i < steps.size() && seen.count(to) == 0; ++i) {
    const std::string here = steps[i].device;
    if (i != 0 && fabric.find_switch(here) == nullptr) continue;
    for (const auto& [link, forward] : links[here]) {
      const std::string& next = forward ? link->to : link->from;
      if (!seen.emplace(next, steps.size()).second) continue;
      steps.push_back(
          {next, forward ? link->to_port : link->from_port, here, forward ? link->from_port : link->to_port});
    }
  }
  if (seen.count(to) == 0)
    return wrong(fmt::format("no links lead from '{}' to '{}'", from, to), fabric.path, "describe them");
  std::vector<Hop> hops;
  for (Step step = steps[seen[to]]; step.before != from; step = steps[seen[step.before]])
    hops.insert(hops.begin(), {step.before, steps[seen[step.before]].in, step.before_out});
  return hops;
}

class Trace {
 public:
  Trace(const TraceArguments& args, const fabric::Fabric& fabric, const std::vector<DeviceQos>& devices)
      : args_(args), fabric_(fabric), devices_(devices) {}

  Result<int> run() {
    TL_ASSIGN_OR_RETURN(std::vector<Hop> hops, path(fabric_, args_.from, args_.to));
    TL_ASSIGN_OR_RETURN(files_, files_by_device(args_.configs));
    Json result = {{"from", args_.from},
                   {"to", args_.to},
                   {"dscp", args_.dscp},
                   {"pcp", args_.pcp < 0 ? Json() : Json(args_.pcp)}};
    TL_ASSIGN_OR_RETURN(result["forward"], walk(hops));
    std::reverse(hops.begin(), hops.end());
    for (Hop& hop : hops) std::swap(hop.in, hop.out);
    TL_ASSIGN_OR_RETURN(result["backward"], walk(hops));
    if (args_.json)
      fmt::print("{}\n", result.dump(2, ' ', false, Json::error_handler_t::replace));
    else
      print(result);
    return differs_ ? 1 : 0;
  }

 private:
  Result<Json> walk(const std::vector<Hop>& hops) {
    Json all = Json::array();
    for (const Hop& hop : hops) {
      if (configurations_.count(hop.device) == 0) {
        TL_ASSIGN_OR_RETURN(configurations_[hop.device], observed(hop.device));
      }
      TL_ASSIGN_OR_RETURN(const lint::Port* in, port(hop.device, hop.in));
      TL_ASSIGN_OR_RETURN(const lint::Port* out, port(hop.device, hop.out));
      Marks marks{static_cast<std::uint8_t>(args_.dscp), {}};
      if (args_.pcp >= 0) marks.pcp = static_cast<std::uint8_t>(args_.pcp);
      const Treatment found = treatment(*in, *out, marks);
      Json json = {{"device", hop.device}, {"in", hop.in}, {"out", hop.out}};
      json.update(to_json(found));
      json["differences"] = against_file(hop, found);
      differs_ |= !json["differences"].empty();
      all.push_back(std::move(json));
    }
    return all;
  }

  Result<lint::Device> observed(const std::string& name) const {
    const auto files = files_.find(name);
    if (files != files_.end()) {
      TL_ASSIGN_OR_RETURN(const std::vector<Configuration> found, readable(files->second));
      findings::Report ignored;  // which `lint` is for
      if (!found.empty())
        return lint::parse_configuration(found[0].language, found[0].text, found[0].path, name, ignored);
    }
    return wrong(fmt::format("no configuration of '{}' that can be traced", name),
                 (fs::path(args_.configs) / name).string(),
                 "give that of SONiC, EOS, NX-OS, Junos or Cumulus, in a folder or file called like the device");
  }

  Result<const lint::Port*> port(const std::string& device, const std::string& name) const {
    const lint::Device& configuration = configurations_.at(device);
    for (const lint::Port& port : configuration.ports)
      if (port.name == name) return &port;
    return wrong(fmt::format("port '{}' has no QoS", name), configuration.place,
                 "give the configuration that the file describes");
  }

  Json against_file(const Hop& hop, const Treatment& found) const {
    Json all = Json::array();
    const auto device =
        std::find_if(devices_.begin(), devices_.end(), [&](const auto& d) { return d.name == hop.device; });
    if (device == devices_.end()) return all;
    const auto kind = [&](const std::string& name) -> const PortKind* {
      for (const DevicePort& port : device->ports)
        if (port.name == name) return &device->kinds[port.kind];
      return nullptr;
    };
    const PortKind *in = kind(hop.in), *out = kind(hop.out);
    if (in == nullptr || out == nullptr || !found.by_dscp) return all;
    for (const Difference& d : differences(found, *device, *in, *out, static_cast<std::uint8_t>(args_.dscp)))
      all.push_back(d.what);
    return all;
  }

  static std::string text(const Json& value) { return value.is_null() ? "?" : value.dump(); }

  static void print(const Json& result) {
    for (const char* direction : {"forward", "backward"}) {
      fmt::print("{}\n", direction);
      for (const Json& hop : result[direction]) {
        const Json &scheduling = hop["scheduling"], &ecn = hop["ecn"], &shaper = hop["shaper"];
        std::string line =
            fmt::format("  {} {} -> {}: class {}, group {}, PFC {}, queue {}", hop["device"].get<std::string>(),
                        hop["in"].get<std::string>(), hop["out"].get<std::string>(), text(hop["class"]),
                        text(hop["priority_group"]), text(hop["pfc"]), text(hop["queue"]));
        if (!scheduling.is_null())
          line +=
              scheduling["strict"].get<bool>() ? ", strict" : fmt::format(", weight {}", text(scheduling["weight"]));
        if (!ecn.is_null())
          line +=
              fmt::format(", ECN {} to {} {}", text(ecn["kmin"]), text(ecn["kmax"]), ecn["unit"].get<std::string>());
        if (!shaper.is_null())
          line += shaper["percent"].is_null() ? fmt::format(", at most {} bit/s", text(shaper["bits_per_second"]))
                                              : fmt::format(", at most {} %", text(shaper["percent"]));
        fmt::print("{}\n", line);
        for (const Json& difference : hop["differences"]) fmt::print("    {}\n", difference.get<std::string>());
      }
    }
  }

  const TraceArguments& args_;
  const fabric::Fabric& fabric_;
  const std::vector<DeviceQos>& devices_;
  FilesByDevice files_;
  std::map<std::string, lint::Device> configurations_;
  bool differs_ = false;
};

Result<int> run(const TraceArguments& args) {
  TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(args.fabric, fabric::Keys::kOptional));
  std::vector<std::string_view> names;
  for (const fabric::Host& host : fabric.hosts) names.push_back(host.name);
  for (const std::string& host : {args.from, args.to})
    if (fabric.find_host(host) == nullptr)
      return wrong(fmt::format("no host '{}'", host), args.fabric, suggestion(host, names) + "name hosts of the file");
  if (args.from == args.to) return wrong("both ends are one host", args.from, "name two");
  TL_ASSIGN_OR_RETURN(const std::vector<DeviceQos> devices, devices_of(fabric, Selection{}));
  return Trace(args, fabric, devices).run();
}

}  // namespace

void add_trace_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<TraceArguments>();
  CLI::App* command = app.add_subcommand("trace", "What every switch between two hosts does with a packet");
  command->footer(
      "Example:\n  tensorlane-switch trace --configs configs --fabric fabric.yaml --from h0 --to h9 --dscp 46\n"
      "reads configs/SWITCH/* or configs/SWITCH.*, rendered or running, along a shortest way and back. Exit status 1 "
      "where\n"
      "a hop does not do what the file asks.");
  command->add_option("--configs", args->configs, "A folder with a folder or a file for each switch")
      ->required()
      ->type_name("DIR");
  command->add_option("--fabric", args->fabric, "The fabric file")->required();
  command->add_option("--from", args->from, "A host")->required();
  command->add_option("--to", args->to, "Another")->required();
  command->add_option("--dscp", args->dscp, "The packet's")->required()->check(CLI::Range(0, 63));
  command->add_option("--pcp", args->pcp, "Of its VLAN tag, for ports that do not look at DSCPs")
      ->check(CLI::Range(0, 7));
  command->add_flag("--json", args->json, "Print one JSON object");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
