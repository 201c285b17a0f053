#include "common/nccl/policy.h"

#include "common/base/text.h"
#include "common/files/careful.h"
#include "common/json/json.h"

namespace tensorlane::nccl {
namespace {

constexpr char kRender[] = "render it: tensorlane classes --for nccl --json --fabric ";
using Json = nlohmann::json;

// What is no policy is replaced by one.
Status refuse(const std::string& what, const std::string& path) {
  return {Code::kInvalidArgument, "the NCCL policy " + what, path,
          std::string(kRender) + "FILE --out " + for_shell(path)};
}

// A fabric file is good for others, and must stay.
Status refuse_fabric_file(const std::string& path) {
  return {Code::kInvalidArgument, "the NCCL policy is a fabric file, which the env plugin does not read", path,
          kRender + for_shell(path) + " --out nccl-policy.json, and name that file"};
}

// Whether a line begins with a section that every fabric file has, as it does in YAML.
bool is_fabric_file(const std::string& text) {
  const std::string lines = std::string("\n").append(text);
  const auto has = [&](const char* start) { return lines.find(start) != std::string::npos; };
  return has("\nhosts:") || has("\nswitches:") || has("\nlinks:");
}

// Null where it is missing.
const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

// NCCL takes names and values as C strings.
bool is_c_string(const std::string& text) {
  return text.find('\0') == std::string::npos;
}

Result<Variables> variables_of(const Json& process, const std::string& path) {
  if (process.size() > kMostVariables)
    return refuse("has more than " + std::to_string(kMostVariables) + " variables in 'process'", path);
  Variables variables;
  for (const auto& [name, value] : process.items()) {
    if (name.empty() || name.find('=') != std::string::npos || !is_c_string(name))
      return refuse("has '" + name + "' in 'process', which names no variable", path);
    if (value.is_null())
      variables.emplace(name, std::nullopt);
    else if (value.is_string() && is_c_string(value.get_ref<const std::string&>()))
      variables.emplace(name, value.get<std::string>());
    else
      return refuse("gives " + name + " neither a text nor null", path);
  }
  return variables;
}

}  // namespace

Result<Variables> read_policy(const std::string& path, const std::string& root) {
  TL_ASSIGN_OR_RETURN(const std::string text,
                      files::read({root, path}, "the NCCL policy", files::Care::kConfiguration, kMostBytes));
  // The parser does not recurse, but others that handle a value do.
  bool too_deep = false;
  const auto bound = [&](int level, Json::parse_event_t event, const Json& /*value*/) {
    const bool begins = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    too_deep = too_deep || (begins && level >= kDeepest);  // the first level has number 0
    return !too_deep;
  };
  const Json json = Json::parse(text, bound, /*allow_exceptions=*/false);
  if (too_deep) return refuse("has more than " + std::to_string(kDeepest) + " levels", path);
  if (json.is_discarded()) return is_fabric_file(text) ? refuse_fabric_file(path) : refuse("is no JSON", path);
  if (!json.is_object()) return refuse("is no JSON object", path);
  if (json.contains("hosts")) return refuse_fabric_file(path);
  const Json* subject = member(json, "for");
  if (subject == nullptr || *subject != "nccl") return refuse("does not say that it is for 'nccl'", path);
  const Json* version = member(json, "version");
  if (version == nullptr || *version != 1) return refuse("has another version than 1", path);
  const Json* process = member(json, "process");
  if (process == nullptr || !process->is_object()) return refuse("has no object 'process'", path);
  return variables_of(*process, path);
}

}  // namespace tensorlane::nccl
