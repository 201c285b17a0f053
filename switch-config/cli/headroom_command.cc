// `tensorlane-switch headroom`: the headroom of one port, by formula, by a vendor's table, or estimated.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "common/fabric/fabric.h"
#include "common/fabric/yaml_reader.h"
#include "common/json/json.h"
#include "switch-config/cli/commands.h"
#include "switch-config/headroom/headroom.h"
#include "switch-config/headroom/lookup.h"

namespace tensorlane::switches {
namespace {

using headroom::Headroom;

constexpr const char* kEstimate = "no vendor's number: ask the vendor for a table";

struct HeadroomArguments {
  std::string asic;
  std::string formula = "current";
  std::string lookup;
  std::string speed;
  std::string cable;
  std::uint64_t mtu = 9216;
  std::uint64_t lossless_mtu = 4096;
  unsigned small_packets = 50;
  unsigned lanes = 0;  // 0: not said
  bool shared_headroom = false;
  bool json = false;
};

// The status, with the option it is about as its place.
Status about(const char* option, const Status& status) {
  return Status(status.code(), status.what(), option, status.fix());
}

Result<headroom::PortParameters> port_of(const HeadroomArguments& args) {
  const auto speed = fabric::parse_rate(args.speed);
  if (!speed.ok()) return about("--speed", speed.status());
  const auto cable = fabric::parse_metres(args.cable);
  if (!cable.ok()) return about("--cable", cable.status());
  return headroom::PortParameters{*speed, *cable, Bytes(args.mtu), Bytes(args.lossless_mtu)};
}

int print(const HeadroomArguments& args, const Headroom& result) {
  if (args.json) {
    const nlohmann::ordered_json out = {
        {"xoff", result.xoff.value}, {"xon", result.xon.value}, {"size", result.size.value}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("xoff {} bytes  xon {} bytes  size {} bytes\n", result.xoff.value, result.xon.value, result.size.value);
  }
  return 0;
}

int print(const HeadroomArguments& args, const headroom::Estimate& estimate) {
  if (args.json) {
    const nlohmann::ordered_json out = {{"estimate", true},
                                        {"xoff_lower", estimate.lower.value},
                                        {"xoff_upper", estimate.upper.value},
                                        {"warning", kEstimate}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("estimate: xoff between {} and {} bytes; {}\n", estimate.lower.value, estimate.upper.value, kEstimate);
  }
  return 0;
}

Result<int> run(const HeadroomArguments& args) {
  TL_ASSIGN_OR_RETURN(const headroom::PortParameters port, port_of(args));
  if (!args.lookup.empty()) {
    TL_ASSIGN_OR_RETURN(const auto table, headroom::load_lookup(args.lookup));
    const auto row = headroom::find_row(table, port.speed, port.cable_metres);
    if (!row.ok()) return about(args.lookup.c_str(), row.status());
    return print(args, row->headroom);
  }
  if (args.asic == "generic") {
    TL_ASSIGN_OR_RETURN(const headroom::Estimate estimate, headroom::generic_headroom(port));
    return print(args, estimate);
  }
  headroom::Parameters parameters;
  const auto asic = headroom::parse_asic(args.asic);
  if (!asic.ok()) return about("--asic", asic.status());
  const auto formula = headroom::parse_formula(args.formula);
  if (!formula.ok()) return about("--formula", formula.status());
  parameters.asic = *asic;
  parameters.formula = *formula;
  parameters.port = port;
  parameters.small_packet_percent = args.small_packets;
  parameters.shared_headroom = args.shared_headroom;
  if (args.lanes != 0) parameters.lanes = args.lanes;
  const auto result = headroom::nvidia_headroom(parameters);
  if (!result.ok()) return about(("--" + result.status().where()).c_str(), result.status());
  return print(args, *result);
}

}  // namespace

void add_headroom_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<HeadroomArguments>();
  CLI::App* command = app.add_subcommand("headroom", "How much buffer a lossless class needs on a port");
  command->footer(
      "Example:\n  tensorlane-switch headroom --asic spectrum4 --speed 400G --cable 40m --json\n"
      "spectrum1 to spectrum5 compute what SONiC's dynamic buffer model does; --lookup reads the table of another\n"
      "vendor's platform and takes the next longer cable; --asic generic estimates from the speed and length alone.");
  auto* asic = command->add_option("--asic", args->asic, "spectrum1 to spectrum5, or generic for an estimate");
  auto* lookup = command->add_option("--lookup", args->lookup, "A pg_profile_lookup.ini, instead of --asic");
  asic->excludes(lookup);
  command->add_option("--formula", args->formula, "current or older, of --asic spectrum*")->capture_default_str();
  command->add_option("--speed", args->speed, "Of the port: 400G")->required();
  command->add_option("--cable", args->cable, "Its length: 40m")->required();
  command->add_option("--mtu", args->mtu, "Of the port, in bytes")->capture_default_str();
  command->add_option("--lossless-mtu", args->lossless_mtu, "Of lossless traffic, in bytes")->capture_default_str();
  command->add_option("--small-packets", args->small_packets, "How many of 100 lossless packets have 64 bytes")
      ->capture_default_str();
  command->add_option("--lanes", args->lanes, "Of the port [as many as the speed takes on this ASIC]")
      ->check(CLI::Range(1, 8));
  command->add_flag("--shared-headroom", args->shared_headroom, "The switch has a shared headroom pool");
  command->add_flag("--json", args->json, "Print one JSON object; bytes");
  command->callback([args, &chosen] {
    if (args->asic.empty() && args->lookup.empty()) throw CLI::RequiredError("--asic or --lookup");
    chosen.run = [args] { return run(*args); };
  });
}

}  // namespace tensorlane::switches
