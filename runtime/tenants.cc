#include "runtime/tenants.h"

#include <algorithm>
#include <utility>

namespace lssar {

void Tenants::BeginStep(std::span<const std::unique_ptr<SequenceGroup>> running,
                        std::span<const SequenceGroup* const> first_waiting,
                        Clock::time_point now) {
  const auto by_service = [](const Tenant* tenant) { return tenant->service; };
  if (!active_.empty()) {
    virtual_time_ =
        std::max(virtual_time_, (*std::ranges::min_element(active_, {}, by_service))->service);
  }
  active_.clear();
  ++num_steps_;
  const auto activate = [&](const std::string& name) {
    const auto [at, is_new] = tenants_.try_emplace(name);
    Tenant* const tenant = &at->second;
    if (is_new) tenant->credit = kMaxCreditSteps * step_cost_;
    if (!tenant->is_active) tenant->service = std::max(tenant->service, virtual_time_);
    tenant->is_active = true;
    tenant->last_active = now;
    tenant->last_step = num_steps_;
    return tenant;
  };
  for (const auto& group : running) group->owner = activate(group->tenant);
  for (const SequenceGroup* const group : first_waiting) activate(group->tenant);
  for (auto at = tenants_.begin(); at != tenants_.end();) {
    Tenant* const tenant = &at->second;
    tenant->is_active = tenant->last_step == num_steps_;
    tenant->first_preempted = Clock::time_point::max();
    if (tenant->is_active) active_.push_back(tenant);
    if (now - tenant->last_active > kMemory) {
      at = tenants_.erase(at);
    } else {
      ++at;
    }
  }
  now_ = now;
  // One that is alone has left nothing to anybody.
  if (!AreShared() && !active_.empty()) active_.front()->credit = 0;
  std::ranges::sort(active_, {}, by_service);
  for (size_t i = 0; i < active_.size(); ++i) active_[i]->rank = int(i);
}

void Tenants::CountUsage(std::span<const std::unique_ptr<SequenceGroup>> running) {
  num_running_sequences_ = 0;
  for (auto& [name, tenant] : tenants_) {
    tenant.num_sequences = tenant.num_running_sequences = 0;
    tenant.num_pages = 0;
  }
  for (const auto& group : running) {
    Tenant* const tenant = group->owner;
    for (const Sequence& sequence : group->sequences) {
      if (sequence.IsDone()) continue;
      ++tenant->num_sequences;
      if (sequence.state == SequenceState::kPreempted) continue;
      ++num_running_sequences_;
      if (group->is_paused) continue;
      ++tenant->num_running_sequences;
      tenant->num_pages += std::ssize(sequence.pages);
    }
  }
}

void Tenants::EndStep(int64_t cost, int num_pages) {
  for (Tenant* const tenant : active_) tenant->service += cost * tenant->num_pages / num_pages;
  for (auto& [name, tenant] : tenants_) {
    tenant.credit = std::clamp(tenant.credit + ShareOf(cost) - std::exchange(tenant.step_cost, 0),
                               int64_t{0}, kMaxCreditSteps * step_cost_);
  }
}

}  // namespace lssar
