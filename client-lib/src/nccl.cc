// tl_nccl_preflight(): the C interface of common/nccl.
#include <tensorlane/nccl.h>

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <new>
#include <optional>
#include <string>

#include "client-lib/src/error.h"
#include "common/nccl/preflight.h"

namespace tensorlane::client {
namespace {

nccl::Sources own_sources() {
  nccl::Sources sources;
  sources.environment = nccl::own_environment();
  // As the user database says; what HOME says is in the environment.
  passwd storage{}, *found = nullptr;
  std::array<char, 16384> buffer{};
  if (getpwuid_r(getuid(), &storage, buffer.data(), buffer.size(), &found) == 0 && found != nullptr)
    sources.home = found->pw_dir;
  return sources;
}

Status run(const tl_nccl_subject_t* asked, tl_nccl_finding_t function, void* argument) {
  if (asked == nullptr || function == nullptr || asked->size != sizeof(tl_nccl_subject_t))
    return Status(Code::kInvalidArgument, "no subject, or one of another size, or no function", "tl_nccl_preflight",
                  "pass a tl_nccl_subject_t whose size is set");
  const auto refuse = [](const char* what) {
    return Status(Code::kInvalidArgument, what, "tl_nccl_preflight", "give each class and each variable a name");
  };
  nccl::Subject subject;
  subject.sources = own_sources();
  subject.version = asked->version;
  for (std::size_t i = 0; i < asked->class_count; ++i) {
    const tl_nccl_class_t& cls = asked->classes[i];
    if (cls.name == nullptr) return refuse("a class has no name");
    subject.classes.push_back({cls.name, cls.traffic_class, cls.service_level});
  }
  for (std::size_t i = 0; i < asked->overridden_count; ++i) {
    if (asked->overridden[i] == nullptr) return refuse("a variable has no name");
    const char* value = asked->values[i];
    subject.overridden.emplace(asked->overridden[i],
                               value == nullptr ? std::nullopt : std::optional<std::string>(value));
  }
  if (asked->service_level >= 0) subject.service_level = static_cast<unsigned>(asked->service_level);
  for (const nccl::Finding& finding : nccl::preflight(subject))
    function(finding.rule.c_str(), static_cast<int>(finding.severity), finding.place.c_str(), finding.message.c_str(),
             finding.fix.c_str(), argument);
  if (nccl::rdma_devices("").empty())
    function("N4", static_cast<int>(nccl::Severity::kNote), "/sys/class/infiniband", nccl::no_rdma_device(),
             "nothing, where ranks of one host talk to each other only", argument);
  return {};
}

}  // namespace
}  // namespace tensorlane::client

extern "C" tl_status_t tl_nccl_preflight(const tl_nccl_subject_t* subject, tl_nccl_finding_t function, void* argument) {
  using namespace tensorlane;
  try {
    return client::report(client::run(subject, function, argument));
  } catch (const std::bad_alloc&) {
    return client::report(Status(Code::kResourceExhausted, "there is no memory", "tl_nccl_preflight", "free some"));
  } catch (...) {
    return client::report(Status(Code::kInternal, "the preflight failed", "tl_nccl_preflight", "report this"));
  }
}
