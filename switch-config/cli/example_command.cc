// `tensorlane-switch example`: a fabric file to start from.
#include <array>
#include <memory>

#include <fmt/format.h>

#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "switch-config/cli/commands.h"

namespace tensorlane::switches {
namespace {

struct ExampleArguments {
  unsigned spines = 2, leaves = 4, hosts = 32;
  std::string nos = "sonic";
  bool json = false;
};

// How a NOS calls its ports: text, the first number, the step, and text.
struct Naming {
  const char* before;
  unsigned first, step;
  const char* after;
  const char* platform;
};

// By fabric::Nos. Buffers that the switch tool does not know by the platform's name are to be checked with its vendor.
constexpr std::array<Naming, 8> kNaming{
    Naming{"Ethernet", 0, 4, "", "SN5600"},
    Naming{"swp", 1, 1, "", "SN5600"},
    Naming{"Ethernet", 1, 1, "/1", "{name: example, buffer: 100 MiB, queues: 8, lossless: 2}"},
    Naming{"Ethernet1/", 1, 1, "", "{name: example, buffer: 100 MiB, queues: 8, lossless: 2}"},
    Naming{"et-0/0/", 0, 1, "", "{name: example, buffer: 100 MiB, queues: 8, lossless: 2}"},
    Naming{"1/", 1, 1, "", "SN4700"},
    Naming{"Ethernet", 0, 4, "", "SN5600"},
    Naming{"swp", 1, 1, "", "SN5600"},
};

// Ports `first` to `first + count - 1` of a switch, each `repeat` times.
std::string ports(const Naming& naming, unsigned first, unsigned count, unsigned repeat = 1) {
  const auto number = [&](unsigned i) { return naming.first + i * naming.step; };
  std::string range = fmt::format("{}-{}", number(first), number(first + count - 1));
  if (naming.step != 1) range += fmt::format(":{}", naming.step);
  if (repeat != 1) range += fmt::format("*{}", repeat);
  return fmt::format("{}[{}]{}", naming.before, range, naming.after);
}

std::string host_links(const ExampleArguments& args, const Naming& naming) {
  constexpr const char* kCable = "speed: 400 Gbit/s, cable: 3 m, mtu: 9216}\n";
  const unsigned each = args.hosts / args.leaves, more = args.hosts % args.leaves;
  if (more == 0)
    return fmt::format("  - {{from: \"h[0-{}]\", from_port: eth0, to: \"leaf[0-{}*{}]\", to_port: \"{}\", {}",
                       args.hosts - 1, args.leaves - 1, each, ports(naming, 0, each), kCable);
  std::string text;
  for (unsigned leaf = 0, host = 0; leaf < args.leaves && host < args.hosts; ++leaf) {
    const unsigned count = each + (leaf < more ? 1 : 0);
    text += fmt::format("  - {{from: \"h[{}-{}]\", from_port: eth0, to: leaf{}, to_port: \"{}\", {}", host,
                        host + count - 1, leaf, ports(naming, 0, count), kCable);
    host += count;
  }
  return text;
}

std::string counted(unsigned count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string clos(const ExampleArguments& args, std::size_t nos) {
  const Naming& naming = kNaming[nos];
  const unsigned most = (args.hosts + args.leaves - 1) / args.leaves;  // hosts at a leaf
  const auto switches = [&](const char* name, unsigned count, unsigned used) {
    return fmt::format(
        "  - name: \"{0}[0-{1}]\"\n    nos: {2}\n    platform: {3}\n    role: {0}\n"
        "    ports: [{{name: \"{4}\", speed: 400 Gbit/s, lanes: 4}}]\n",
        name, count - 1, fabric::kNosNames[nos], naming.platform, ports(naming, 0, used));
  };
  std::string text = fmt::format("# {} on {} and {}. Keys are described in common/fabric/README.md.\n",
                                 counted(args.hosts, "host", "hosts"), counted(args.leaves, "leaf", "leaves"),
                                 counted(args.spines, "spine", "spines"));
  text +=
      "# For daemons, list the hosts one by one, each with its public_key (`tensorlane make-key`); the switch tool "
      "needs none.\n";
  text += "classes: greenfield\n";
  text += fmt::format("hosts:\n  - {{name: \"h[0-{0}]\", addresses: {{tcp: \"h[0-{0}]\"}}}}\n", args.hosts - 1);
  text +=
      "switches:\n" + switches("leaf", args.leaves, most + args.spines) + switches("spine", args.spines, args.leaves);
  text += "links:\n" + host_links(args, naming);
  text += fmt::format(
      "  - {{from: \"leaf[0-{}*{}]\", from_port: \"{}\", to: \"spine[0-{}]\", to_port: \"{}\", speed: 400 Gbit/s, "
      "cable: 40 m, mtu: 9216}}\n",
      args.leaves - 1, args.spines, ports(naming, most, args.spines), args.spines - 1,
      ports(naming, 0, args.leaves, args.spines));
  return text + "routing: {mode: up-down}\n";
}

Result<int> run(const ExampleArguments& args) {
  std::string known;
  std::size_t nos = fabric::kNosNames.size();
  for (std::size_t i = 0; i < fabric::kNosNames.size(); ++i) {
    if (fabric::kNosNames[i] == args.nos) nos = i;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", fabric::kNosNames[i]);
  }
  if (nos == fabric::kNosNames.size())
    return Status(Code::kInvalidArgument, fmt::format("'{}' is not known", args.nos), "--nos",
                  "expected one of " + known);
  const std::string text = clos(args, nos);
  if (args.json)
    fmt::print("{}\n", nlohmann::json{{"fabric", text}}.dump());
  else
    fmt::print("{}", text);
  return 0;
}

}  // namespace

void add_example_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<ExampleArguments>();
  CLI::App* command = app.add_subcommand("example", "A fabric file to start from");
  command->require_subcommand(1);
  CLI::App* shape = command->add_subcommand("clos", "Leaves and spines, every leaf linked with every spine");
  shape->footer(
      "Example:\n  tensorlane-switch example clos --spines 2 --leaves 4 --hosts 32 --nos sonic > fabric.yaml");
  shape->add_option("--spines", args->spines, "How many")->check(CLI::Range(1, 1024))->capture_default_str();
  shape->add_option("--leaves", args->leaves, "How many")->check(CLI::Range(1, 4096))->capture_default_str();
  shape->add_option("--hosts", args->hosts, "How many in all, spread over the leaves")
      ->check(CLI::Range(1, 32768))
      ->capture_default_str();
  shape->add_option("--nos", args->nos, "Of the switches")->capture_default_str();
  shape->add_flag("--json", args->json, "Print one JSON object that holds the file's text");
  shape->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::switches
