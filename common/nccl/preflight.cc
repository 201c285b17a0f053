#include "common/nccl/preflight.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "common/base/text.h"
#include "common/files/place.h"

namespace tensorlane::nccl {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kDefaultOfUcx = 106;  // "auto", on RoCE v2
constexpr int kFirstWithGinClass = 23000;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// Whether `text` has `word`, with no letter beside it: "libnccl-net-ofi.so" has "ofi", and "profiler" does not.
bool has_word(const std::string& text, std::string_view word) {
  const auto is_letter = [&](std::size_t at) {
    return at < text.size() && std::isalpha(static_cast<unsigned char>(text[at])) != 0;
  };
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size())) return true;
  }
  return false;
}

// The names of the files in a list of paths, in small letters; folders say nothing of a plugin.
std::string file_names(const std::string& list) {
  std::string names;
  for (std::size_t from = 0; from <= list.size();) {
    const std::size_t end = std::min(list.find(',', from), list.size());
    names += lower(fs::path(list.substr(from, end - from)).filename()) + ",";
    from = end + 1;
  }
  return names;
}

// The names of the file and of those that it links to, in small letters, separated by blanks. Empty: there is no such
// file.
std::string names_along_links(const std::string& root, fs::path path) {
  constexpr int kMostLinks = 40;
  std::string names;
  for (int i = 0; i < kMostLinks; ++i) {
    const std::string target = files::link_target({root, path});
    if (target.empty()) return files::exists({root, path}) ? names + lower(path.filename()) : "";
    names += lower(path.filename()) + " ";
    path = path.parent_path() / target;
  }
  return "";
}

// A transport below NCCL that takes no class from it.
struct Network {
  const char* word;  // part of its name, in NCCL_NET or NCCL_NET_PLUGIN
  const char* what;
  const char* fix;
};
constexpr Network kNetworks[] = {
    {"ofi", "aws-ofi-nccl takes the class of a communicator and drops it",
     "use NCCL's own NET/IB where the NICs speak RoCE"},
    {"libfabric", "aws-ofi-nccl takes the class of a communicator and drops it",
     "use NCCL's own NET/IB where the NICs speak RoCE"},
    {"uccl", "UCCL has one class for the whole process",
     "set UCCL_ROCE_TRAFFIC_CLASS or UCCL_IB_TC to one class of `tensorlane classes`"},
    {"ucx", "NCCL over UCX has one class for the whole process",
     "set UCX_IB_TRAFFIC_CLASS to one class of `tensorlane classes --for ucx`"},
};

constexpr char kPluginFile[] = "libnccl-env-tensorlane.so";

bool is_own_plugin(const std::string& named) {
  const std::string file = fs::path(named).filename();
  return file == "tensorlane" || file == kPluginFile;
}

bool is_shared_object(const files::Place& place) {
  const std::string_view magic(
      "\x7f"
      "ELF",
      4);
  return files::read_beginning(place, Bytes(magic.size())) == magic;
}

class Preflight {
 public:
  explicit Preflight(const Subject& subject)
      : subject_(subject), settings_(subject.sources, subject.version, findings_) {}

  std::vector<Finding> run() {
    check_version();
    check_plugin();
    // NCCL looks for these two before it has a plugin.
    for (const auto& [name, value] : subject_.overridden) {
      if (own_plugin_ && name != "NCCL_ENV_PLUGIN" && name != "NCCL_CONF_FILE")
        settings_.force(name, value, "the policy");
    }
    check_traffic_class();
    check_service_level();
    check_shared_resources();
    check_network();
    check_clear_to_send();
    check_gin();
    check_library("UCX_", "UCX_IB_TRAFFIC_CLASS", "UCX", kDefaultOfUcx);
    check_library("NVSHMEM_", "NVSHMEM_IB_TRAFFIC_CLASS", "NVSHMEM", 0);
    check_devices();
    return std::move(findings_);
  }

 private:
  void add(const char* rule, Severity severity, const std::string& place, const std::string& message,
           const std::string& fix) {
    findings_.push_back({rule, severity, place, message, fix});
  }

  // "NCCL_IB_TC in /etc/nccl.conf:3", for one that is set.
  std::string place(const std::string& name) const {
    const Setting* setting = settings_.find(name);
    return setting == nullptr ? name
                              : name + " in " + (setting->place == "environment" ? "the environment" : setting->place);
  }

  const Class* class_of(std::int64_t traffic_class) const {
    const auto found = std::ranges::find_if(subject_.classes, [&](const Class& cls) {
      return static_cast<std::int64_t>(cls.traffic_class) == traffic_class;
    });
    return found == subject_.classes.end() ? nullptr : &*found;
  }

  // "traffic class 106 (DSCP 26, class 'bulk')"
  std::string words(std::int64_t traffic_class) const {
    const Class* cls = class_of(traffic_class);
    std::string text =
        "traffic class " + std::to_string(traffic_class) + " (DSCP " + std::to_string(traffic_class >> 2);
    if (cls != nullptr) text += ", class '" + cls->name + "'";
    if (cls == nullptr && !subject_.classes.empty()) text += ", which is no class of the fabric";
    return text + ")";
  }

  std::string choices() const {
    std::string text;
    for (const Class& cls : subject_.classes)
      text += (text.empty() ? "" : ", ") + std::to_string(cls.traffic_class) + " ('" + cls.name + "')";
    return text;
  }

  void check_version() {
    if (subject_.version == 0) return;
    const std::string name = "NCCL " + version_text(subject_.version);
    if (subject_.version < kFirstWithTrafficClass)
      add("N8", Severity::kError, "libnccl", name + " knows no traffic class of a communicator: groups have no classes",
          "NCCL 2.27 or later; until then one class for a process, by NCCL_IB_TC");
    if (subject_.version < kFirstWithEnvPlugin)
      add("N8", settings_.find("NCCL_ENV_PLUGIN") == nullptr ? Severity::kNote : Severity::kWarning,
          settings_.find("NCCL_ENV_PLUGIN") == nullptr ? "libnccl" : place("NCCL_ENV_PLUGIN"),
          name + " has no env plugin: nothing holds users to the host's settings",
          "NCCL 2.28.7 or later, or see to it that users set none of these variables");
  }

  void check_plugin() {
    const Setting* plugin = settings_.find("NCCL_ENV_PLUGIN");
    if (plugin == nullptr || (subject_.version != 0 && subject_.version < kFirstWithEnvPlugin)) return;
    own_plugin_ = loads_own_plugin(settings_, subject_);
    if (!own_plugin_ && is_own_plugin(plugin->value)) {
      add("N7", Severity::kWarning, place("NCCL_ENV_PLUGIN"),
          plugin->value.starts_with('/')
              ? "it is no shared object that could be read: NCCL starts without the host's settings"
              : std::string(kPluginFile) +
                    " is neither in LD_LIBRARY_PATH nor in a folder of the system: NCCL would "
                    "start without the host's settings",
          "give the path of libnccl-env-tensorlane.so from / on");
    } else if (!own_plugin_) {
      add("N7", Severity::kNote, place("NCCL_ENV_PLUGIN"),
          "the env plugin is '" + plugin->value + "', not tensorlane's: what it says of variables was not looked at",
          "nothing, where that is meant");
    }
  }

  void check_traffic_class() {
    const std::int64_t mark = settings_.number("NCCL_IB_TC").value_or(-1);
    if (mark != -1)
      add("N1", Severity::kError, place("NCCL_IB_TC"),
          "it beats the class of every communicator: all traffic of the process has " + words(mark) +
              not_a_number(value("NCCL_IB_TC")),
          "take it out: classes come from the policy");
    if (settings_.number("NCCL_IB_ROCE_VERSION_NUM").value_or(2) != 2)
      add("N1", Severity::kError, place("NCCL_IB_ROCE_VERSION_NUM"),
          "RoCE v" + value("NCCL_IB_ROCE_VERSION_NUM") + " packets have no DSCP: switches see no class",
          "2, or take it out");
    if (settings_.number("TORCH_DISTRIBUTED_USE_TORCHCOMMS").value_or(0) != 0)
      add("N1", Severity::kWarning, place("TORCH_DISTRIBUTED_USE_TORCHCOMMS"),
          "torchcomms makes NCCL's communicators, to which PyTorch before 2.14 passes no class on", "take it out");
  }

  static std::string not_a_number(const std::string& value) {
    const char* begin = value.c_str();
    char* end = nullptr;
    std::strtoll(begin, &end, 0);
    return *end == 0 ? "" : "; NCCL reads '" + value + "' as " + std::to_string(std::strtoll(begin, nullptr, 0));
  }

  void check_service_level() {
    const std::int64_t level = settings_.number("NCCL_IB_SL").value_or(-1);
    std::string levels;
    for (const Class& cls : subject_.classes)
      levels += (levels.empty() ? "" : ", ") + std::to_string(cls.service_level) + " ('" + cls.name + "')";
    const std::string fix = subject_.service_level ? "NCCL_IB_SL=" + std::to_string(*subject_.service_level)
                            : levels.empty()       ? "expected 0 to 15"
                                                   : "expected one of " + levels;
    if (level == -1) {
      const unsigned example = subject_.classes.empty() ? 104 : subject_.classes.front().traffic_class;
      add("N2", Severity::kWarning, place("NCCL_IB_SL"),
          "it is not set: NCCL takes the traffic class for the service level, too, and " + std::to_string(example) +
              " does not fit into its 4 bits",
          fix);
    } else if (level < 0 || level > 15) {
      add("N2", Severity::kError, place("NCCL_IB_SL"), "'" + value("NCCL_IB_SL") + "' is no service level", fix);
    } else if (!subject_.classes.empty() &&
               std::ranges::none_of(subject_.classes, [&](const Class& cls) { return cls.service_level == level; })) {
      add("N2", Severity::kWarning, place("NCCL_IB_SL"),
          "service level " + std::to_string(level) + " is that of no class of the fabric" +
              not_a_number(value("NCCL_IB_SL")),
          fix);
    }
  }

  void check_shared_resources() {
    for (const auto& [name, how] : {std::pair("NCCL_COMM_SPLIT_SHARE_RESOURCES", "split"),
                                    std::pair("NCCL_COMM_SHRINK_SHARE_RESOURCES", "shrink")}) {
      if (settings_.number(name).value_or(0) == 0) continue;
      add("N3", Severity::kError, place(name),
          std::string("a communicator that ") + how +
              " makes keeps the connections of its parent, and with them its class",
          "0, or take it out");
    }
  }

  void check_network() {
    const std::string network = value("NCCL_NET"), plugin = value("NCCL_NET_PLUGIN");
    if (lower(network) == "socket")
      return add("N4", Severity::kError, place("NCCL_NET"), "NET/Socket sets no class on its connections",
                 "IB, or take it out");
    for (const auto& [name, text] : {std::pair("NCCL_NET", network), std::pair("NCCL_NET_PLUGIN", plugin)}) {
      for (const Network& each : kNetworks) {
        if (has_word(file_names(text), each.word)) return add("N4", Severity::kError, place(name), each.what, each.fix);
      }
    }
    if (settings_.number("NCCL_IB_DISABLE").value_or(0) != 0)
      return add("N4", Severity::kError, place("NCCL_IB_DISABLE"),
                 "without NET/IB there is NET/Socket, which sets no class on its connections", "0, or take it out");
    if (plugin.empty()) check_unasked_plugin();
  }

  std::string value(const std::string& name) const {
    const Setting* setting = settings_.find(name);
    return setting == nullptr ? "" : setting->value;
  }

  // NCCL loads libnccl-net.so wherever the loader finds it first. The loader looks at a process's variables when it
  // starts: what files set is too late.
  void check_unasked_plugin() {
    for (const std::string& folder : library_folders(subject_.sources.environment)) {
      const std::string path = folder + "/libnccl-net.so";
      const std::string names = names_along_links(subject_.sources.root, path);
      for (const Network& each : kNetworks) {
        if (has_word(names, each.word))
          return add("N4", Severity::kError, "LD_LIBRARY_PATH in the environment",
                     "NCCL loads " + path + " (" + names.substr(names.rfind(' ') + 1) + ") unasked: " + each.what,
                     each.fix);
      }
      if (!names.empty()) return;
    }
  }

  void check_clear_to_send() {
    const std::string name = "NCCL_IB_FIFO_TC";
    const std::int64_t mark = settings_.number(name).value_or(-1);
    if (mark == -1 || subject_.classes.empty() || class_of(mark) != nullptr) return;
    add("N5", Severity::kWarning, place(name), "clear-to-send messages have " + words(mark) + not_a_number(value(name)),
        "expected one of " + choices());
  }

  // Without the variable these have the class of their communicator.
  void check_gin() {
    const std::string name = "NCCL_GIN_IB_TC";
    const std::int64_t mark = settings_.number(name).value_or(-1);
    if (mark == -1 || (subject_.version != 0 && subject_.version < kFirstWithGinClass)) return;
    add("N5", Severity::kWarning, place(name),
        "messages that GPUs send by themselves (GIN) and of remote memory access have " + words(mark) +
            ", whatever the class of their communicator" + not_a_number(value(name)),
        "take it out");
  }

  // Of another library on the same NICs, where the environment shows that it is used.
  void check_library(const std::string& prefix, const std::string& name, const std::string& library, unsigned unset) {
    if (subject_.classes.empty() || !settings_.has_prefix(prefix)) return;
    const Setting* setting = settings_.find(name);
    const bool chosen = setting != nullptr && setting->value != "auto";
    const std::int64_t value = chosen ? settings_.number(name).value_or(-1) : unset;
    if (class_of(value) != nullptr) return;
    add("N6", Severity::kWarning, place(name),
        (chosen               ? ""
         : setting == nullptr ? "it is not set: "
                              : "it leaves the choice to the library: ") +
            library + " sends with " + words(value),
        "expected one of " + choices());
  }

  void check_devices() {
    for (const std::string& name : rdma_devices(subject_.sources.root)) {
      if (!uses(name)) continue;
      const unsigned forced = forced_traffic_class(subject_.sources.root, name);
      const std::string path = "/sys/class/infiniband/" + name + "/tc/1/traffic_class";
      if (forced != 0)
        add("N1", Severity::kError, path, "the device puts all queue pairs into one class: " + words(forced),
            "echo 0 > " + for_shell(path));
    }
  }

  // By NCCL_IB_HCA: names or beginnings of names, with "=" whole ones, with "^" those that are not used.
  bool uses(const std::string& device) const {
    const Setting* setting = settings_.find("NCCL_IB_HCA");
    if (setting == nullptr) return true;
    std::string_view list = setting->value;
    const bool excluded = list.starts_with('^');
    if (excluded) list.remove_prefix(1);
    const bool whole = list.starts_with('=');
    if (whole) list.remove_prefix(1);
    bool listed = false;
    while (!list.empty()) {
      const std::string_view item = list.substr(0, list.find(','));
      list.remove_prefix(std::min(item.size() + 1, list.size()));
      const std::string_view name = item.substr(0, item.find(':'));  // without its port
      listed = listed || (!name.empty() && (whole ? device == name : device.starts_with(name)));
    }
    return listed != excluded;
  }

  const Subject& subject_;
  std::vector<Finding> findings_;
  Settings settings_;
  bool own_plugin_ = false;
};

}  // namespace

std::vector<Finding> preflight(const Subject& subject) {
  return Preflight(subject).run();
}

bool loads_own_plugin(const Settings& settings, const Subject& subject) {
  if (subject.version != 0 && subject.version < kFirstWithEnvPlugin) return false;
  const Setting* plugin = settings.find("NCCL_ENV_PLUGIN");
  if (plugin == nullptr || !is_own_plugin(plugin->value)) return false;
  const std::string& root = subject.sources.root;
  if (plugin->value.starts_with('/')) return is_shared_object({root, plugin->value});
  return std::ranges::any_of(loader_folders(subject.sources.environment), [&](const std::string& folder) {
    return is_shared_object({root, folder + "/" + kPluginFile});
  });
}

std::vector<std::string> rdma_devices(const std::string& root) {
  return files::names_in({root, "/sys/class/infiniband"});
}

const char* no_rdma_device() {
  return "this host has no RDMA device: NCCL uses NET/Socket here, which sets no class on its connections";
}

unsigned forced_traffic_class(const std::string& root, const std::string& device) {
  const files::Place place{root, "/sys/class/infiniband/" + device + "/tc/1/traffic_class"};
  const std::string text = files::read_beginning(place, kib(4)).value_or("");
  const std::string line = text.substr(0, text.find('\n'));
  // mlx5 writes "Global tclass=106" where one is forced.
  const std::size_t digits = line.find_first_of("0123456789");
  return digits == line.npos ? 0 : static_cast<unsigned>(std::strtoul(line.c_str() + digits, nullptr, 0));
}

}  // namespace tensorlane::nccl
